"""Measures how many objects `detect` finds with one, two and three labels in a prompt.

    python benchmarks/labels_at_once.py                    # 200 drawings, the built-in model

Every drawing is asked for each shape alone, for each two and each three neighbours of the list of
shapes together, and for the same three with `each`; a drawing has some of them or none. Prints one
JSON object: recall and precision of the boxes at an IoU of 0.5, and the share of the rows with
objects in which none is found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

import pgcli
from benchmarks.demo_quality import in_pixels
from examples.demo_model.render import render
from examples.demo_model.scenes import EVAL_SEEDS, SHAPES, Scene
from pgcli.evaluation.metrics.ap import is_right
from pgcli.records import Answer, Box


def main() -> None:
    options = parse_options()
    engine = pgcli.load(options.model, device=options.device, batch_size=options.batch_size)
    scenes = [Scene.from_seed(seed) for seed in EVAL_SEEDS[: options.scenes]]
    images = [render(scene) for scene in scenes]
    report = {}
    for name, count, each in (("1", 1, False), ("2", 2, False), ("3", 3, False), ("each", 3, True)):
        answers: list[Answer] = []
        truths: list[list[Box]] = []
        for labels in neighbours(count):
            rows = list(engine.detect(images, labels, each=each))
            answers += rows
            truths += [true_boxes(scenes[row.index], asked(row)) for row in rows]
        report[name] = figures(answers, truths)
    print(json.dumps({"model": engine.label, "drawings": len(scenes), "labels": report}, indent=2))


def neighbours(count: int) -> Iterator[Sequence[str]]:
    """As many labels that follow each other in the list of shapes, from each of them on."""
    for first in range(len(SHAPES)):
        yield [*SHAPES, *SHAPES][first : first + count]


def asked(row: Answer) -> list[str]:
    """The labels in a row's prompt."""
    return row.prompt.removeprefix("detect ").split(" ; ")


def true_boxes(scene: Scene, labels: Sequence[str]) -> list[Box]:
    """The boxes of the objects of these shapes, in pixels."""
    pairs = zip(scene.objects, scene.boxes, strict=True)
    return [in_pixels(drawn.shape, box, scene) for drawn, box in pairs if drawn.shape in labels]


def figures(answers: Sequence[Answer], truths: Sequence[Sequence[Box]]) -> dict[str, float]:
    """Recall, precision, and the share of rows with objects in which none is found."""
    pairs = [(answer.boxes, truth) for answer, truth in zip(answers, truths, strict=True)]
    right = sum(sum(is_right(boxes, truth)) for boxes, truth in pairs)
    found, objects = (sum(map(len, boxes)) for boxes in zip(*pairs, strict=True))
    empty = [not boxes for boxes, truth in pairs if truth]
    return {
        "rows": len(answers),
        "objects": objects,
        "recall": round(right / objects, 4),
        "precision": round(right / found, 4),
        "empty": round(sum(empty) / len(empty), 4),
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--scenes", type=int, default=200, choices=range(1, len(EVAL_SEEDS) + 1))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
