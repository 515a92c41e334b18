"""Draws hearts, a shape that the built-in model has never seen, with labels to train and to measure.

    python -m examples.new_shape runs/hearts

writes 60 drawings with prompts and answers (`train.jsonl`), 60 others with questions
(`questions.jsonl`) and boxes (`boxes.jsonl`), and 60 drawings of known shapes (`known.jsonl`), which
show what was forgotten. docs/training.md trains with them.
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

from examples.demo_model.examples import eval_examples, location_tokens
from examples.demo_model.phrases import article, matches, phrase_counts, phrase_text, plural
from examples.demo_model.render import render
from examples.demo_model.scenes import COLOURS, EXAMPLE_SEEDS, SHAPES, Point, Scene, SceneObject

HEART = "heart"
DRAWINGS = 60
#: Drawings by their use: none is in two of them, or in the training data of the built-in model.
TRAIN, NEW, KNOWN = (EXAMPLE_SEEDS[start : start + DRAWINGS] for start in (100, 200, 300))
HEART_RATE = 0.5  # of objects
NUMBERS = ("no", "one", "two", "three", "four")


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
                groups.append(article(words) if number == 1 else f"{NUMBERS[number]} {plural(words)}")
    listed = " and ".join([", ".join(groups[:-1]), groups[-1]] if len(groups) > 1 else groups)
    return f"{listed} on {article(scene.background)} background"


def questions(scene: Scene) -> Iterator[tuple[str, str, str]]:
    """Kind, prompt and answer of the questions about a drawing."""
    yield "caption", "caption en", caption(scene)
    shapes = [one.shape for one in scene.objects]
    absent = [shape for shape in SHAPES if shape not in shapes]
    others = [shape for shape in SHAPES if shape in shapes]
    asked = [HEART, *Random(scene.seed).sample(absent, 1), *others[:1]]
    for shape in asked:
        yield "is there", f"is there {article(shape)}?", "yes" if shape in shapes else "no"
        yield "how many", f"how many {plural(shape)} are there?", str(shapes.count(shape))
        colours = {one.colour for one in scene.objects if one.shape == shape}
        if len(colours) == 1 and shapes.count(shape) == 1:
            yield "which colour", f"what colour is the {shape}?", *colours
    for one in scene.objects:
        if [other.colour for other in scene.objects].count(one.colour) == 1:
            yield "which shape", f"what shape is the {one.colour} one?", one.shape


def boxes(scene: Scene, shape: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location tokens and the box in pixels of each object of a shape, from left to right."""
    pairs = zip(scene.objects, scene.boxes, strict=True)
    for drawn, box in sorted(pairs, key=lambda pair: (pair[1].xmin, pair[1].ymin)):
        if matches((shape, None), drawn):
            sides = {name: getattr(box, name) for name in ("xmin", "ymin", "xmax", "ymax")}
            scale = {"x": scene.width, "y": scene.height}
            pixels = {name: value * scale[name[0]] for name, value in sides.items()}
            yield f"{location_tokens(box)} {shape}", {"label": shape, **pixels}


def detection(scene: Scene, shape: str) -> tuple[str, str]:
    """The prompt and the answer of a detection."""
    return f"detect {phrase_text((shape, None))}", " ; ".join(text for text, _ in boxes(scene, shape))


def draw(folder: Path, scenes: Iterable[Scene]) -> Iterator[tuple[str, Scene]]:
    """Draw each scene into the folder; its path from the folder above, and the scene."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes):
        name = f"{folder.name}/{number:02}.png"
        render(scene).save(folder.parent / name)
        yield name, scene


def write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def main(folder: Path) -> None:
    train, asked, found, known = [], [], [], []
    for image, scene in draw(folder / "train", map(with_hearts, TRAIN)):
        pairs = [(prompt, answer) for _, prompt, answer in questions(scene)]
        pairs += [detection(scene, shape) for shape in dict.fromkeys([HEART, scene.objects[-1].shape])]
        train += [{"image": image, "prefix": prompt, "suffix": answer} for prompt, answer in pairs]
    for image, scene in draw(folder / "new", map(with_hearts, NEW)):
        for number, (kind, prompt, answer) in enumerate(questions(scene)):
            row = {"id": f"{image} {number}", "image": image, "prompt": prompt, "answer": answer}
            asked.append(row | {"kind": kind})
        true = [box for _, box in boxes(scene, HEART)]
        found.append({"id": Path(image).name, "prompt": f"detect {HEART}", "boxes": true})
    for image, scene in draw(folder / "known", map(Scene.from_seed, KNOWN)):
        for number, one in enumerate(eval_examples(scene)):
            if one.kind != "detect":
                row = {"id": f"{image} {number}", "image": image, "prompt": one.prefix}
                known.append(row | {"answer": one.suffix, "kind": one.kind})
    rows = {"train": train, "questions": asked, "boxes": found, "known": known}
    for name, of_name in rows.items():
        write(folder / f"{name}.jsonl", of_name)
        print(f"{folder / name}.jsonl: {len(of_name)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
