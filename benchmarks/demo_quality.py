"""Measures the accuracy of the built-in model on drawings outside its training data.

    python benchmarks/demo_quality.py                      # 1,000 drawings, the installed model
    python benchmarks/demo_quality.py --model runs/demo --scenes 200
    python benchmarks/demo_quality.py --first-seed 20000 --scenes 2500  # other drawings
    python benchmarks/demo_quality.py --dtype bfloat16

Every drawing is rendered in its own size, encoded as a PNG file and read like any other image.
Prints one JSON object with the metrics of `pgcli eval`: the share of right answers (all questions,
and by kind) and of entirely right captions, precision, recall and F1 of boxes at an IoU of 0.5, the
mean IoU of masks, and the share of characters and words that are read correctly.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import accumulate, chain
from random import Random

import numpy
from PIL import Image, ImageDraw
from tqdm import tqdm

from benchmarks.measure import options
from examples.demo_model.questions import (
    Example,
    Phrase,
    boxes_example,
    eval_examples,
    matching,
    ocr_example,
    phrase_counts,
)
from examples.demo_model.scenes import (
    COLOURS,
    EVAL_SEEDS,
    SHAPES,
    SUPERSAMPLING,
    RelativeBox,
    Scene,
    SceneObject,
    lettered_scene,
    render,
)
from pgcli import rle
from pgcli.checkpoints.find import find
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import open_engine
from pgcli.evaluation.measures import JoinedRow, measures, value_of
from pgcli.evaluation.text_metrics import levenshtein
from pgcli.images import ImageDecoder
from pgcli.labels.labelled_image import LabelledImage, objects_of
from pgcli.records import Box, Item, Rle, Task
from pgcli.tasks import Question

Rows = Sequence[JoinedRow]
NO_QUESTIONS = ("caption", "detect")


def main() -> None:
    args = options(
        __doc__,
        model="demo",
        scenes=len(EVAL_SEEDS),
        first_seed=EVAL_SEEDS.start,
        batch_size=64,
        device="auto",
        dtype="auto",
    )
    engine = open_engine(
        find(args.model), device=args.device, dtype=args.dtype, batch_size=args.batch_size
    )
    seeds = range(args.first_seed, args.first_seed + args.scenes)
    scenes = [Scene.from_seed(seed) for seed in seeds]
    examples = [[x for x in eval_examples(scene) if x.kind != "ocr"] for scene in scenes]
    rows = answered(engine, "ask", scenes, examples)
    by_kind: dict[str, list[JoinedRow]] = defaultdict(list)
    for example, row in zip(chain.from_iterable(examples), rows, strict=True):
        by_kind[example.kind].append(row)
    questions = [
        row for kind, of_kind in by_kind.items() if kind not in NO_QUESTIONS for row in of_kind
    ]
    segmented = answered(engine, "segment", scenes, [[segmentation(scene)] for scene in scenes])
    lettered = [lettered_scene(seed) for seed in seeds]
    read = answered(engine, "ocr", lettered, [[ocr_example(scene)] for scene in lettered])
    report = {
        "model": engine.label,
        "device": engine.device,
        "dtype": engine.dtype,
        "scenes": len(scenes),
        "questions": len(questions),
        "answers_right": measured("exact", questions)["exact"],
        "captions_entirely_right": measured("exact", by_kind["caption"])["exact"],
        "detection": boxes_of(by_kind["detect"]),
        "masks": measured("miou", segmented),
        "words_read": measured("exact", read)["exact"],
        "characters_read": round(characters_read(read), 4),
        "right_by_kind": {
            kind: measured("exact", of_kind)["exact"] for kind, of_kind in sorted(by_kind.items())
        },
    }
    print(json.dumps(report, indent=2))


def answered(
    engine: InferenceEngine,
    task: Task,
    scenes: Sequence[Scene],
    examples: Sequence[Sequence[Example]],
) -> list[JoinedRow]:
    """The answers to all examples, in order, with the true ones."""
    decoded = map(ImageDecoder(engine.spec), items(scenes, examples))
    images = zip(accumulate(map(len, examples), initial=0), decoded, strict=False)
    total = sum(map(len, examples))
    answers = dict(tqdm(engine.ask(images, Question(task, None, 128)), total=total, unit="answer"))
    asked = (
        (scene, example)
        for scene, of_scene in zip(scenes, examples, strict=True)
        for example in of_scene
    )
    return [
        JoinedRow(
            str(scene.seed),
            example.prefix,
            {"answer": answers[index].answer},
            truth(scene, example),
            tuple(answers[index].boxes),
            tuple(mask and mask.rle for mask in answers[index].masks or ()),
        )
        for index, (scene, example) in enumerate(asked)
    ]


def measured(metric: str, rows: Rows) -> dict[str, float]:
    """The values of the measures of a metric, by name."""
    return {
        measure.name: round(value_of(measure, len(rows)), 4) for measure in measures(metric, rows)
    }


def boxes_of(rows: Rows) -> dict[str, float]:
    values = measured("ap", rows)
    return {name: values[name] for name in ("precision@0.5", "recall@0.5", "f1@0.5")}


def characters_read(rows: Rows) -> float:
    """One minus the edit distance of all answers over the letters of all words."""
    pairs = [(row.answer or "", row.truth.answers[0] if row.truth else "") for row in rows]
    return 1 - sum(levenshtein(*pair) for pair in pairs) / sum(len(word) for _, word in pairs)


def items(scenes: Iterable[Scene], examples: Iterable[Sequence[Example]]) -> Iterator[Item]:
    for index, (scene, of_scene) in enumerate(zip(scenes, examples, strict=True)):
        file = BytesIO()
        render(scene).save(file, "PNG")
        prompts = tuple(example.prefix for example in of_scene)
        yield Item(
            index, str(scene.seed), f"{scene.seed}.png", data=file.getvalue(), prompts=prompts
        )


def segmentation(scene: Scene) -> Example:
    """The prompt for the masks of objects of the scene; the masks are compared, not the answer."""
    label = Random(f"masks {scene.seed}").choice(sorted(phrase_counts(scene), key=str))
    return Example("segment", boxes_example([label], scene, "segment").prefix, "")


def truth(scene: Scene, example: Example) -> LabelledImage:
    """The answer, and for labels its boxes in pixels and its masks."""
    if example.kind not in ("detect", "segment"):
        return LabelledImage(answers=(example.suffix,))
    labels = example.prefix.partition(" ")[2].split(" ; ")
    drawn_boxes = [
        (label, drawn, box)
        for label in labels
        for _, drawn, box in matching([phrase(label)], scene)
    ]
    boxes = tuple(in_pixels(label, box, scene) for label, _, box in drawn_boxes)
    is_masked = example.kind == "segment"
    masks = tuple(mask(drawn, scene) for _, drawn, _ in drawn_boxes) if is_masked else ()
    return LabelledImage(answers=(example.suffix,), objects=objects_of(boxes, masks))


def in_pixels(label: str, box: RelativeBox, scene: Scene) -> Box:
    width, height = scene.width, scene.height
    return Box(label, box.xmin * width, box.ymin * height, box.xmax * width, box.ymax * height, 1.0)


def mask(drawn: SceneObject, scene: Scene) -> Rle:
    """The pixels that the object covers by at least half."""
    size = scene.width * SUPERSAMPLING, scene.height * SUPERSAMPLING
    canvas = Image.new("L", size)
    corners = [(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in drawn.outline]
    ImageDraw.Draw(canvas).polygon(corners, fill=255)
    return rle.encode_mask(numpy.asarray(canvas.reduce(SUPERSAMPLING)) > 127)


def phrase(label: str) -> Phrase:
    """The phrase of a label: `red circle`, `circle`, `red shape` or `shape`."""
    words = label.split()
    shape = next((word for word in words if word in SHAPES), None)
    return shape, next((word for word in words if word in COLOURS), None)


if __name__ == "__main__":
    main()
