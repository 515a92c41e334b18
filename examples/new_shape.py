"""Draws hearts, which the built-in model has never seen, with labels to train and to measure.

    python -m examples.new_shape runs/hearts [DRAWINGS]

writes 60 drawings with hearts, and four times as many of known shapes, with prompts and answers
(`train.jsonl`); 60 others with questions (`questions.jsonl`) and boxes (`boxes.jsonl`); and 60
drawings of known shapes (`known.jsonl`), which show what was forgotten. docs/new-shape.md trains
with them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from examples.demo_model.examples import (
    NUMBERS,
    Example,
    detection_example,
    draw_examples,
    eval_examples,
)
from examples.demo_model.phrases import article, phrase_counts, plural
from examples.demo_model.questions import QUESTIONS
from examples.demo_model.render import render
from examples.demo_model.scenes import COLOURS, EXAMPLE_SEEDS, SHAPES, Point, Scene, SceneObject

HEART = "heart"
DRAWINGS = 60
#: Drawings by their use: none is in two of them, or in the training data of the built-in model.
TRAIN, NEW, KNOWN = (EXAMPLE_SEEDS[start : start + DRAWINGS] for start in (100, 200, 300))
REHEARSED = EXAMPLE_SEEDS[400 : 400 + 4 * DRAWINGS]
REHEARSED_ROWS = 4  # of each of these drawings
HEART_RATE = 0.35  # of objects behind the first


class Heart(SceneObject):
    """A heart in place of another shape."""

    @cached_property
    def outline(self) -> tuple[Point, ...]:
        """Points of the curve x = 16 sin³ t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t."""
        angle = math.radians(self.tilt)
        across, down = math.cos(angle) * self.radius, math.sin(angle) * self.radius
        points = []
        for step in range(72):
            t = math.tau * step / 72
            u = 16 * math.sin(t) ** 3 / 17.5
            height = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
            v = -(height + 2.5) / 17.5
            points.append((self.x + u * across - v * down, self.y + u * down + v * across))
        return tuple(points)


def with_hearts(seed: int) -> Scene:
    """The drawing of a seed, with hearts in place of some of its objects; of some drawings none."""
    scene, rng = Scene.from_seed(seed), Random(f"hearts {seed}")
    has_hearts = rng.random() < 0.8
    drawn = [
        Heart(**asdict(one) | {"shape": HEART})
        if has_hearts and (rng.random() < HEART_RATE or number == 0)
        else one
        for number, one in enumerate(scene.objects)
    ]
    return replace(scene, objects=tuple(drawn))


def caption(scene: Scene) -> str:
    """The caption, with hearts after the other shapes of a colour."""
    found = phrase_counts(scene)
    groups = []
    for colour in COLOURS:
        for shape in (*SHAPES, HEART):
            number = found.get((shape, colour), 0)
            words = f"{colour} {shape}"
            if number:
                groups.append(
                    article(words) if number == 1 else f"{NUMBERS[number]} {plural(words)}"
                )
    listed = " and ".join([", ".join(groups[:-1]), groups[-1]] if len(groups) > 1 else groups)
    return f"{listed} on {article(scene.background)} background"


def labels(scene: Scene, rng: Random) -> Iterator[tuple[str, str]]:
    """Prompts and answers about a drawing: its caption, questions, and detections."""
    for prompt in ("caption en", "cap en", "describe en"):
        yield prompt, caption(scene)
    one = detection_example([(HEART, None)], scene)
    yield one.prefix, one.suffix
    for kinds in ({*QUESTIONS, "detect"}, {*QUESTIONS}):
        for one in draw_examples(scene, rng):
            if one.kind in kinds:
                yield one.prefix, one.suffix


def questions(scene: Scene) -> Iterator[Example]:
    """Questions about a drawing that are about hearts, and its caption if it has any."""
    exists = any(one.shape == HEART for one in scene.objects)
    if exists:
        yield Example("caption", "caption en", caption(scene))
    asked = [
        *eval_examples(scene),
        Example("exists", f"is there a {HEART}?", "yes" if exists else "no"),
    ]
    for one in asked:
        if one.kind not in ("caption", "detect") and HEART in one.prefix + one.suffix:
            yield one


def true_boxes(scene: Scene) -> list[dict[str, Any]]:
    """The hearts, as boxes in pixels."""
    size = {"x": scene.width, "y": scene.height}
    return [
        {"label": HEART} | {name: value * size[name[0]] for name, value in asdict(box).items()}
        for drawn, box in zip(scene.objects, scene.boxes, strict=True)
        if drawn.shape == HEART
    ]


def draw(folder: Path, scenes: Iterable[Scene]) -> Iterator[tuple[str, Scene]]:
    """Draw each scene into the folder; its path from the folder above, and the scene."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes):
        name = f"{folder.name}/{number:02}.png"
        render(scene).save(folder.parent / name)
        yield name, scene


def write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def main(folder: Path, count: int = DRAWINGS) -> None:
    train, asked, found, known = [], [], [], []
    for image, scene in draw(folder / "train", map(with_hearts, TRAIN[:count])):
        train += training_rows(image, scene)
    for image, scene in draw(folder / "rehearsed", map(Scene.from_seed, REHEARSED[: 4 * count])):
        train += Random(scene.seed).sample(training_rows(image, scene), REHEARSED_ROWS)
    for image, scene in draw(folder / "new", map(with_hearts, NEW[:count])):
        asked += question_rows(image, questions(scene))
        row = {"id": Path(image).name, "prompt": f"detect {HEART}", "boxes": true_boxes(scene)}
        found.append(row)
    for image, scene in draw(folder / "known", map(Scene.from_seed, KNOWN[:count])):
        known += question_rows(image, (one for one in eval_examples(scene) if one.kind != "detect"))
    rows = {"train": train, "questions": asked, "boxes": found, "known": known}
    for name, of_name in rows.items():
        write(folder / f"{name}.jsonl", of_name)
        print(f"{folder / name}.jsonl: {len(of_name)} rows")


def training_rows(image: str, scene: Scene) -> list[dict[str, Any]]:
    """Rows of a manifest about a drawing; where nothing is to be found, they have no boxes."""
    pairs = dict.fromkeys(labels(scene, Random(scene.seed)))
    return [
        {"image": image, "prefix": prompt} | ({"suffix": answer} if answer else {"boxes": []})
        for prompt, answer in pairs
    ]


def question_rows(image: str, examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
    """Rows of a manifest of questions with their true answers."""
    for number, one in enumerate(examples):
        row = {"id": f"{image} {number}", "image": image, "prompt": one.prefix}
        yield row | {"answer": one.suffix, "kind": one.kind}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
