"""Measures the accuracy of the built-in model on drawings outside its training data.

    python benchmarks/demo_quality.py                      # 1,000 drawings, the installed model
    python benchmarks/demo_quality.py --model runs/demo --scenes 200

Every drawing is rendered in its own size and encoded as a PNG file, which is then read as any
other image. Prints one JSON object: the share of right answers (all questions, and by kind) and of
entirely right captions, and precision, recall and F1 of the boxes at an IoU of 0.5.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO
from itertools import chain

from tqdm import tqdm

from examples.demo_model.examples import Example, eval_examples
from examples.demo_model.phrases import Phrase, matches
from examples.demo_model.render import render
from examples.demo_model.scenes import COLOURS, EVAL_SEEDS, SHAPES, RelativeBox, Scene
from pgcli.checkpoints.find import find
from pgcli.engine.loader import load
from pgcli.evaluation.metrics import count_detections, exact_match
from pgcli.images import ImageDecoder
from pgcli.records import Box, Item
from pgcli.tasks import Question

IOU = 0.5


def main() -> None:
    options = parse_options()
    engine = load(find(options.model), device=options.device, batch_size=options.batch_size)
    scenes = [Scene.from_seed(seed) for seed in EVAL_SEEDS[: options.scenes]]
    examples = [eval_examples(scene) for scene in scenes]
    flat = list(chain.from_iterable(examples))
    decoded = map(ImageDecoder(engine.spec), items(scenes, examples))
    images = zip(first_indices(examples), decoded, strict=True)
    stream = engine.ask(images, Question("ask", None, 96))
    answers = dict(tqdm(stream, total=len(flat), unit="answer"))
    rows = [(example, answers[index]) for index, example in enumerate(flat)]

    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for example, answer in rows:
        pairs[example.kind].append((answer.answer or "", example.suffix))
    questions = [pair for kind in pairs if kind not in NO_QUESTIONS for pair in pairs[kind]]
    truths = list(chain.from_iterable(map(true_boxes, scenes, examples)))
    found = [answer.boxes for example, answer in rows if example.kind == "detect"]
    boxes = count_detections(found, truths, threshold=IOU)
    report = {
        "model": engine.label,
        "device": engine.device,
        "dtype": engine.dtype,
        "scenes": len(scenes),
        "questions": len(questions),
        "answers_right": share(questions),
        "captions_entirely_right": share(pairs["caption"]),
        "detection": {
            "iou": IOU,
            "precision": round(boxes.precision, 4),
            "recall": round(boxes.recall, 4),
            "f1": round(boxes.f1, 4),
        },
        "right_by_kind": {kind: share(of_kind) for kind, of_kind in sorted(pairs.items())},
    }
    print(json.dumps(report, indent=2))


NO_QUESTIONS = ("caption", "detect", "ocr")


def share(pairs: list[tuple[str, str]]) -> float:
    answers, truths = zip(*pairs, strict=True)
    return round(exact_match(answers, truths), 4)


def items(scenes: list[Scene], examples: list[list[Example]]) -> Iterator[Item]:
    for index, (scene, of_scene) in enumerate(zip(scenes, examples, strict=True)):
        file = BytesIO()
        render(scene).save(file, "PNG")
        prompts = tuple(example.prefix for example in of_scene)
        yield Item(
            index, str(scene.seed), f"{scene.seed}.png", data=file.getvalue(), prompts=prompts
        )


def first_indices(examples: list[list[Example]]) -> Iterator[int]:
    """The row index of the first example of each scene."""
    index = 0
    for of_scene in examples:
        yield index
        index += len(of_scene)


def true_boxes(scene: Scene, examples: list[Example]) -> Iterator[tuple[Box, ...]]:
    """The true boxes of each detection of a scene, in pixels."""
    for example in examples:
        if example.kind == "detect":
            yield tuple(
                in_pixels(box, label, scene)
                for label in example.prefix.removeprefix("detect ").split(" ; ")
                for drawn, box in zip(scene.objects, scene.boxes, strict=True)
                if matches(phrase(label), drawn)
            )


def phrase(label: str) -> Phrase:
    """The phrase of a label: `red circle`, `circle`, `red shape` or `shape`."""
    words = label.split()
    shape = next((word for word in words if word in SHAPES), None)
    return shape, next((word for word in words if word in COLOURS), None)


def in_pixels(box: RelativeBox, label: str, scene: Scene) -> Box:
    width, height = scene.width, scene.height
    return Box(label, box.xmin * width, box.ymin * height, box.xmax * width, box.ymax * height, 1.0)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--scenes", type=int, default=len(EVAL_SEEDS))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
