"""Draws hearts, which the built-in model has never seen, with labels for training and evaluation.

    python -m examples.new_shape runs/hearts [DRAWINGS]

writes 60 drawings with hearts, and four times as many of known shapes, with prompts and answers
(`train.jsonl`); 60 others with questions (`questions.jsonl`) and boxes (`boxes.jsonl`); and 60
drawings of known shapes (`known.jsonl`), to measure forgetting.
docs/teach-a-new-shape.md trains with them.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from examples.demo_model import questions
from examples.demo_model.questions import QUESTIONS, Example
from examples.demo_model.scenes import EXAMPLE_SEEDS, OUTLINES, SHAPES, Scene, render

HEART = "heart"
DRAWINGS = 60
#: Drawings by their use, without overlap with each other or with the model's training data.
TRAIN, NEW, KNOWN = (EXAMPLE_SEEDS[start : start + DRAWINGS] for start in (100, 200, 300))
REHEARSED = EXAMPLE_SEEDS[400 : 400 + 4 * DRAWINGS]
REHEARSED_ROWS = 4  # of rehearsal for each of these drawings
HEART_RATE = 0.35  # of objects after the first

OUTLINES[HEART] = []  # x = 16 sin³ t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t
for t in (math.tau * step / 72 for step in range(72)):
    height = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
    OUTLINES[HEART].append((16 * math.sin(t) ** 3 / 17.5, -(height + 2.5) / 17.5))


def with_hearts(seed: int) -> Scene:
    """The drawing of a seed, with hearts in place of some objects; some drawings have none."""
    scene, rng = Scene.from_seed(seed), Random(f"hearts {seed}")
    has_hearts, objects = rng.random() < 0.8, [*scene.objects]
    for number, drawn in enumerate(objects):
        if has_hearts and (rng.random() < HEART_RATE or number == 0):
            objects[number] = replace(drawn, shape=HEART)
    return replace(scene, objects=tuple(objects))


def caption(scene: Scene, prompt: str = "caption en") -> Example:
    """The caption, with hearts after the other shapes of a colour."""
    return Example("caption", prompt, questions.caption(scene, (*SHAPES, HEART)))


def training_rows(image: str, scene: Scene) -> list[dict[str, Any]]:
    """Rows about a drawing: captions, questions and detections; absent labels have no boxes."""
    rng = Random(scene.seed)
    first, second = questions.draw_examples(scene, rng), questions.draw_examples(scene, rng)
    examples = [
        *(caption(scene, prompt) for prompt in ("caption en", "cap en", "describe en")),
        questions.boxes_example([(HEART, None)], scene),
        *(example for example in first if example.kind in {*QUESTIONS, "detect"}),
        *(example for example in second if example.kind in QUESTIONS),
    ]
    pairs = dict.fromkeys((example.prefix, example.suffix) for example in examples)
    return [
        {"image": image, "prefix": prompt} | ({"suffix": answer} if answer else {"boxes": []})
        for prompt, answer in pairs
    ]


def question_rows(image: str, scene: Scene, about: str = "") -> list[dict[str, Any]]:
    """The caption, and the questions that name a shape, with their true answers."""
    asked = [x for x in questions.eval_examples(scene) if x.kind in QUESTIONS]
    if about:
        exists = any(drawn.shape == about for drawn in scene.objects)
        asked.append(Example("exists", f"is there a {about}?", "yes" if exists else "no"))
    examples = [x for x in (caption(scene), *asked) if about in x.prefix + x.suffix]
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
        for _, _, box in questions.matching([(HEART, None)], scene)
    ]
    return {"id": Path(image).name, "prompt": f"detect {HEART}", "boxes": boxes}


def drawn(folder: Path, scenes: Iterable[Scene]) -> Iterator[tuple[str, Scene]]:
    """Draw each scene into the folder; yields it with its path from the parent folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes):
        name = f"{folder.name}/{number:02}.png"
        render(scene).save(folder.parent / name)
        yield name, scene


def main(folder: Path, count: int = DRAWINGS) -> None:
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for image, scene in drawn(folder / "train", map(with_hearts, TRAIN[:count])):
        rows["train"] += training_rows(image, scene)
    for image, scene in drawn(folder / "rehearsed", map(Scene.from_seed, REHEARSED[: 4 * count])):
        known = training_rows(image, scene)
        rows["train"] += Random(scene.seed).sample(known, REHEARSED_ROWS)
    for image, scene in drawn(folder / "new", map(with_hearts, NEW[:count])):
        rows["questions"] += question_rows(image, scene, about=HEART)
        rows["boxes"].append(box_row(image, scene))
    for image, scene in drawn(folder / "known", map(Scene.from_seed, KNOWN[:count])):
        rows["known"] += question_rows(image, scene)
    for name, manifest in rows.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in manifest)
        (folder / f"{name}.jsonl").write_text(lines)
        print(f"{folder / name}.jsonl: {len(manifest)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
