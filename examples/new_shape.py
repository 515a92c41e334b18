"""Draws hearts, which the built-in model has never seen, with labels to train and to measure.

    python -m examples.new_shape runs/hearts [DRAWINGS]

writes 60 drawings with hearts, and four times as many of known shapes, with prompts and answers
(`train.jsonl`); 60 others with questions (`questions.jsonl`) and boxes (`boxes.jsonl`); and 60
drawings of known shapes (`known.jsonl`), which show what was forgotten. docs/training.md trains
with them.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from examples.demo_model.questions import (
    QUESTIONS,
    Example,
    boxes_example,
    caption,
    draw_examples,
    eval_examples,
)
from examples.demo_model.scenes import EXAMPLE_SEEDS, OUTLINES, SHAPES, Scene, render

HEART = "heart"
DRAWINGS = 60
#: The first drawing of each use: none is in two, or in the training data of the built-in model.
TRAIN, NEW, KNOWN, REHEARSED = 100, 200, 300, 400
REHEARSED_ROWS = 4  # of each of these drawings
HEART_RATE = 0.35  # of objects behind the first
CAPTION_PROMPTS = ("caption en", "cap en", "describe en")
Row = dict[str, Any]

OUTLINES[HEART] = []  # x = 16 sin³ t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t
for t in (math.tau * step / 72 for step in range(72)):
    height = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
    OUTLINES[HEART].append((16 * math.sin(t) ** 3 / 17.5, -(height + 2.5) / 17.5))


def with_hearts(seed: int) -> Scene:
    """The drawing of a seed, with hearts in place of some of its objects; of some drawings none."""
    scene, rng = Scene.from_seed(seed), Random(f"hearts {seed}")
    has_hearts = rng.random() < 0.8
    objects = [
        replace(drawn, shape=HEART)
        if has_hearts and (rng.random() < HEART_RATE or number == 0)
        else drawn
        for number, drawn in enumerate(scene.objects)
    ]
    return replace(scene, objects=tuple(objects))


def training_rows(image: str, scene: Scene) -> list[Row]:
    """Rows about a drawing: captions, questions and detections; of nothing, they have no boxes."""
    rng, words = Random(scene.seed), caption(scene, (*SHAPES, HEART))
    examples = [
        *(Example("caption", prompt, words) for prompt in CAPTION_PROMPTS),
        boxes_example([(HEART, None)], scene),
        *(x for x in draw_examples(scene, rng) if x.kind in {*QUESTIONS, "detect"}),
        *(x for x in draw_examples(scene, rng) if x.kind in QUESTIONS),
    ]
    pairs = dict.fromkeys((example.prefix, example.suffix) for example in examples)
    return [
        {"image": image, "prefix": prompt} | ({"suffix": answer} if answer else {"boxes": []})
        for prompt, answer in pairs
    ]


def question_rows(image: str, scene: Scene, *, about_hearts: bool) -> list[Row]:
    """Rows of questions with their true answers, and the caption; those about hearts, or all."""
    examples = [example for example in eval_examples(scene) if example.kind != "detect"]
    if about_hearts:
        exists = any(drawn.shape == HEART for drawn in scene.objects)
        words = caption(scene, (*SHAPES, HEART))
        asked = Example("exists", f"is there a {HEART}?", "yes" if exists else "no")
        examples = [Example("caption", "caption en", words), *examples[1:], asked]
        examples = [x for x in examples if HEART in x.prefix + x.suffix]
    return [
        {"id": f"{image} {number}", "image": image, "prompt": example.prefix}
        | {"answer": example.suffix, "kind": example.kind}
        for number, example in enumerate(examples)
    ]


def box_row(image: str, scene: Scene) -> Row:
    """The row with the boxes of hearts in pixels."""
    size = {"x": scene.width, "y": scene.height}
    boxes = [
        {"label": HEART} | {name: value * size[name[0]] for name, value in asdict(box).items()}
        for drawn, box in zip(scene.objects, scene.boxes, strict=True)
        if drawn.shape == HEART
    ]
    return {"id": Path(image).name, "prompt": f"detect {HEART}", "boxes": boxes}


def draw(
    folder: Path, first: int, count: int, scene_of: Callable[[int], Scene]
) -> Iterator[tuple[str, Scene]]:
    """Draw scenes into the folder; each after its path from the folder above."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(EXAMPLE_SEEDS[first : first + count]):
        name, scene = f"{folder.name}/{number:02}.png", scene_of(seed)
        render(scene).save(folder.parent / name)
        yield name, scene


def main(folder: Path, count: int = DRAWINGS) -> None:
    rows: dict[str, list[Row]] = defaultdict(list)
    for image, scene in draw(folder / "train", TRAIN, count, with_hearts):
        rows["train"] += training_rows(image, scene)
    for image, scene in draw(folder / "rehearsed", REHEARSED, 4 * count, Scene.from_seed):
        known = training_rows(image, scene)
        rows["train"] += Random(scene.seed).sample(known, REHEARSED_ROWS)
    for image, scene in draw(folder / "new", NEW, count, with_hearts):
        rows["questions"] += question_rows(image, scene, about_hearts=True)
        rows["boxes"].append(box_row(image, scene))
    for image, scene in draw(folder / "known", KNOWN, count, Scene.from_seed):
        rows["known"] += question_rows(image, scene, about_hearts=False)
    for name, manifest in rows.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in manifest)
        (folder / f"{name}.jsonl").write_text(lines)
        print(f"{folder / name}.jsonl: {len(manifest)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
