"""Measures what `detect --strict` gains as a step reads forced tokens with the newest one.

    python benchmarks/forced_tokens.py                                   # the built-in model
    python benchmarks/forced_tokens.py --model runs/3b --dtype bfloat16 --images 16

A token is forced where the grammar allows no other, as in a label after four locations. The same
drawings of a red circle are answered with and without such steps, alternately, for one and for two
objects and for each batch size. Prints as JSON the steps, and the processor seconds of all steps
and of the whole answers on one thread: before, now, and the ratio (medians of the rounds, the first
of which warms up); and how many answers are equal.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from statistics import median
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy
import torch

from benchmarks.measure import options
from examples.demo_model.scenes import EVAL_SEEDS, Scene, render
from pgcli import tasks
from pgcli.checkpoints.find import find
from pgcli.engine import model_runner
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import open_engine
from pgcli.engine.model_runner import ModelRunner
from pgcli.records import DecodedImage, Item

OBJECTS = (("red circle",), ("red circle", "blue square"))
BATCHES = (1, 8, 32)
SCENES = [*map(Scene.from_seed, EVAL_SEEDS)]


def main() -> None:
    args = options(
        __doc__,
        model="demo",
        dtype=("float32", "bfloat16"),
        quantize=("none", "int8"),
        images=32,
        max_new_tokens=64,
        rounds=3,
    )
    torch.set_num_threads(1)
    engine = open_engine(find(args.model), device="cpu", dtype=args.dtype, quantize=args.quantize)
    results = []
    for objects in OBJECTS:
        question = tasks.detect(objects, strict=True, max_new_tokens=args.max_new_tokens)
        for batch in BATCHES:
            results.append({"objects": len(objects), "batch": batch})
            results[-1] |= compared(engine, question, batch, args.images, args.rounds)
            print(results[-1], file=sys.stderr)
    json.dump(results, sys.stdout, indent=2)


def compared(
    engine: InferenceEngine, question: tasks.Question, batch: int, images: int, rounds: int
) -> dict[str, Any]:
    """The medians with and without forced tokens, and their ratios."""
    modes = {"before": 0, "now": model_runner.TOKENS_PER_STEP}
    runs: dict[str, list[tuple[int, float, float]]] = {mode: [] for mode in modes}
    answers: dict[str, list[str | None]] = {}
    for number in range(rounds + 1):
        for mode in modes if number % 2 else reversed(modes):
            with patch.object(model_runner, "TOKENS_PER_STEP", modes[mode]):
                answers[mode], run = answered(engine, question, batch, images)
            if number:
                runs[mode].append(run)
    result: dict[str, Any] = {"equal": sum(map(str.__eq__, *answers.values()))}
    for index, figure in enumerate(("steps", "step_seconds", "seconds")):
        before, now = (median(run[index] for run in runs[mode]) for mode in modes)
        result[figure] = [round(before, 3), round(now, 3), round(before / now, 2)]
    return result


def answered(
    engine: InferenceEngine, question: tasks.Question, batch: int, images: int
) -> tuple[list[str | None], tuple[int, float, float]]:
    """The answers; the number of steps, their seconds and those of everything."""
    side, stream = engine.spec.resolution, []
    for n, scene in enumerate(islice(filter(has_red_circle, SCENES), images)):
        item = Item(n, str(n), str(n), prompts=question.templates or ())
        picture = render(scene).resize((side, side))
        stream.append((n, DecodedImage(item, side, side, numpy.asarray(picture), 0.0)))
    steps: list[float] = []
    decode = ModelRunner.decode

    def timed(runner: ModelRunner) -> None:
        began = process_time()
        decode(runner)
        steps.append(process_time() - began)

    with patch.object(ModelRunner, "decode", timed):
        began = process_time()
        rows = dict(engine.ask(iter(stream), question, batch_size=batch))
        seconds = process_time() - began
    return [rows[n].answer for n in range(images)], (len(steps), sum(steps), seconds)


def has_red_circle(scene: Scene) -> bool:
    return any((drawn.colour, drawn.shape) == ("red", "circle") for drawn in scene.objects)


if __name__ == "__main__":
    main()
