"""How right the built-in model is, on drawings from seeds that no training ever saw.

    python benchmarks/demo_quality.py                      # 1,000 drawings, as installed
    python benchmarks/demo_quality.py --model runs/demo --scenes 200

Every drawing is rendered at its natural size, encoded as a PNG and goes the way of any picture.
Prints one JSON object: the share of answers right (all questions, and by kind), of captions
entirely right, and precision, recall and F1 of the boxes at an IoU of 0.5.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO

from tqdm import tqdm

from pgcli.checkpoints.find import find
from pgcli.engine.loading import load
from pgcli.evaluation.metrics import detection, exact_match
from pgcli.images import ImageDecoder
from pgcli.records import Box, Item
from pgcli.tasks import Question
from pgcli.training.drawing import render
from pgcli.training.lessons import Lesson, exam
from pgcli.training.scenes import COLOURS, EXAM_SEEDS, SHAPES, Extent, Scene
from pgcli.training.subjects import Subject, fits

IOU = 0.5


def main() -> None:
    options = parse_options()
    engine = load(find(options.model), device=options.device, batch_size=options.batch_size)
    scenes = [Scene.from_seed(seed) for seed in EXAM_SEEDS[: options.scenes]]
    exams = [exam(scene) for scene in scenes]
    lessons = [lesson for asked in exams for lesson in asked]
    pictures = zip(starts(exams), map(ImageDecoder(engine.spec), items(scenes, exams)), strict=True)
    told = engine.ask(pictures, Question("ask", None, 96))
    answers = dict(tqdm(told, total=len(lessons), unit="answer"))
    rows = [(lesson, answers[place]) for place, lesson in enumerate(lessons)]

    given: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for lesson, answer in rows:
        given[lesson.kind].append((answer.answer or "", lesson.suffix))
    questions = [
        pair for kind, pairs in given.items() if kind not in NO_QUESTIONS for pair in pairs
    ]
    truths = [
        truth for scene, asked in zip(scenes, exams, strict=True) for truth in boxes(scene, asked)
    ]
    found = [answer.boxes for lesson, answer in rows if lesson.kind == "detect"]
    boxes_right = detection(found, truths, threshold=IOU)
    report = {
        "model": engine.label,
        "device": engine.device,
        "dtype": engine.dtype,
        "scenes": len(scenes),
        "questions": len(questions),
        "answers_right": share(questions),
        "captions_entirely_right": share(given["caption"]),
        "detection": {
            "iou": IOU,
            "precision": round(boxes_right.precision, 4),
            "recall": round(boxes_right.recall, 4),
            "f1": round(boxes_right.f1, 4),
        },
        "right_by_kind": {kind: share(pairs) for kind, pairs in sorted(given.items())},
    }
    print(json.dumps(report, indent=2))


NO_QUESTIONS = ("caption", "detect", "ocr")


def share(pairs: list[tuple[str, str]]) -> float:
    answers, truths = zip(*pairs, strict=True)
    return round(exact_match(answers, truths), 4)


def items(scenes: list[Scene], exams: list[list[Lesson]]) -> Iterator[Item]:
    for index, (scene, asked) in enumerate(zip(scenes, exams, strict=True)):
        file = BytesIO()
        render(scene).save(file, "PNG")
        prompts = tuple(lesson.prefix for lesson in asked)
        yield Item(
            index, str(scene.seed), f"{scene.seed}.png", data=file.getvalue(), prompts=prompts
        )


def starts(exams: list[list[Lesson]]) -> Iterator[int]:
    place = 0
    for asked in exams:
        yield place
        place += len(asked)


def boxes(scene: Scene, asked: list[Lesson]) -> Iterator[tuple[Box, ...]]:
    """The true boxes of each detection of an exam, in pixels."""
    for lesson in asked:
        if lesson.kind == "detect":
            yield tuple(
                pixels(box, label, scene)
                for label in lesson.prefix.removeprefix("detect ").split(" ; ")
                for thing, box in zip(scene.things, scene.boxes, strict=True)
                if fits(subject(label), thing)
            )


def subject(label: str) -> Subject:
    """What a label speaks of: `red circle`, `circle`, `red shape` or `shape`."""
    words = label.split()
    shape = next((word for word in words if word in SHAPES), None)
    return shape, next((word for word in words if word in COLOURS), None)


def pixels(box: Extent, label: str, scene: Scene) -> Box:
    width, height = scene.width, scene.height
    return Box(label, box.xmin * width, box.ymin * height, box.xmax * width, box.ymax * height, 1.0)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--scenes", type=int, default=len(EXAM_SEEDS))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
