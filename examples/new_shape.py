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
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from examples.demo_model.examples import (
    Example,
    caption,
    detection_example,
    draw_examples,
    eval_examples,
)
from examples.demo_model.questions import QUESTIONS
from examples.demo_model.scenes import EXAMPLE_SEEDS, OUTLINES, SHAPES, Point, Scene, render

HEART = "heart"
DRAWINGS = 60
#: Drawings by their use: none is in two of them, or in the training data of the built-in model.
TRAIN, NEW, KNOWN = (EXAMPLE_SEEDS[start : start + DRAWINGS] for start in (100, 200, 300))
REHEARSED = EXAMPLE_SEEDS[400 : 400 + 4 * DRAWINGS]
REHEARSED_ROWS = 4  # of each of these drawings
HEART_RATE = 0.35  # of objects behind the first
CAPTION_PROMPTS = ("caption en", "cap en", "describe en")


def heart() -> Iterator[Point]:
    """Points of the curve x = 16 sin³ t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t."""
    for step in range(72):
        t = math.tau * step / 72
        height = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        yield 16 * math.sin(t) ** 3 / 17.5, -(height + 2.5) / 17.5


OUTLINES[HEART] = list(heart())


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


def training_rows(image: str, scene: Scene) -> list[dict[str, Any]]:
    """Rows about a drawing: captions, questions and detections; of nothing, they have no boxes."""
    rng = Random(scene.seed)
    examples = [
        *(Example("caption", prompt, true_caption(scene)) for prompt in CAPTION_PROMPTS),
        detection_example([(HEART, None)], scene),
        *(x for x in draw_examples(scene, rng) if x.kind in {*QUESTIONS, "detect"}),
        *(x for x in draw_examples(scene, rng) if x.kind in QUESTIONS),
    ]
    pairs = dict.fromkeys((example.prefix, example.suffix) for example in examples)
    return [
        {"image": image, "prefix": prompt} | ({"suffix": answer} if answer else {"boxes": []})
        for prompt, answer in pairs
    ]


def true_caption(scene: Scene) -> str:
    """The caption, with hearts after the other shapes of a colour."""
    return caption(scene, (*SHAPES, HEART))


def questions_about_hearts(scene: Scene) -> list[Example]:
    """Questions about a drawing that are about hearts, and its caption if it has any."""
    exists = any(drawn.shape == HEART for drawn in scene.objects)
    asked = [
        *eval_examples(scene),
        Example("exists", f"is there a {HEART}?", "yes" if exists else "no"),
    ]
    captioned = [Example("caption", "caption en", true_caption(scene))] if exists else []
    return captioned + [
        example
        for example in asked
        if example.kind not in ("caption", "detect") and HEART in example.prefix + example.suffix
    ]


def question_rows(image: str, examples: Iterable[Example]) -> list[dict[str, Any]]:
    """Rows of questions about a drawing with their true answers."""
    return [
        {"id": f"{image} {number}", "image": image, "prompt": example.prefix}
        | {"answer": example.suffix, "kind": example.kind}
        for number, example in enumerate(examples)
    ]


def box_row(image: str, scene: Scene) -> dict[str, Any]:
    """The row with the boxes of hearts in pixels."""
    size = {"x": scene.width, "y": scene.height}
    boxes = [
        {"label": HEART} | {name: value * size[name[0]] for name, value in asdict(box).items()}
        for drawn, box in zip(scene.objects, scene.boxes, strict=True)
        if drawn.shape == HEART
    ]
    return {"id": Path(image).name, "prompt": f"detect {HEART}", "boxes": boxes}


def drawn(folder: Path, scenes: Iterable[Scene]) -> Iterator[tuple[str, Scene]]:
    """Each scene, drawn into the folder, after the path from the folder above."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes):
        name = f"{folder.name}/{number:02}.png"
        render(scene).save(folder.parent / name)
        yield name, scene


def main(folder: Path, count: int = DRAWINGS) -> None:
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "questions": [], "boxes": [], "known": []}
    for image, scene in drawn(folder / "train", map(with_hearts, TRAIN[:count])):
        rows["train"] += training_rows(image, scene)
    for image, scene in drawn(folder / "rehearsed", map(Scene.from_seed, REHEARSED[: 4 * count])):
        known = training_rows(image, scene)
        rows["train"] += Random(scene.seed).sample(known, REHEARSED_ROWS)
    for image, scene in drawn(folder / "new", map(with_hearts, NEW[:count])):
        rows["questions"] += question_rows(image, questions_about_hearts(scene))
        rows["boxes"].append(box_row(image, scene))
    for image, scene in drawn(folder / "known", map(Scene.from_seed, KNOWN[:count])):
        asked = [example for example in eval_examples(scene) if example.kind != "detect"]
        rows["known"] += question_rows(image, asked)
    for name, manifest in rows.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in manifest)
        (folder / f"{name}.jsonl").write_text(lines)
        print(f"{folder / name}.jsonl: {len(manifest)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
