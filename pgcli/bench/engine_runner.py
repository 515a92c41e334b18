"""This code as a program under measurement: the engine that runs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from pgcli.bench.inputs import BenchInputs, BenchRun
from pgcli.bench.roofline import Stages
from pgcli.engine.engine import Engine
from pgcli.engine.trial import Trial
from pgcli.errors import UsageError
from pgcli.records import Answer
from pgcli.tasks import Question

#: Answers files and writes their rows: the pipeline of the command line, with its workers.
Pipeline = Callable[[Engine, Sequence[Path], Question, Trial, Path], Sequence[Answer]]


class EngineRunner:
    """The engine, which makes its own batches from a stream of images."""

    def __init__(self, engine: Engine, pipeline: Pipeline, *, name: str = "pgcli"):
        self.name = name
        self._engine, self._pipeline = engine, pipeline

    def run_arrays(self, inputs: BenchInputs) -> BenchRun:
        """From the images' pixels in memory to every row's tokens."""
        self._engine.batch_size = inputs.batch
        trial, prompts = Trial(inputs.lengths), inputs.question.templates or ()
        start = perf_counter()
        stream = (
            (number * len(prompts), replace(image, item=replace(image.item, prompts=prompts)))
            for number, image in enumerate(inputs.images)
        )
        answers = [answer for _, answer in self._engine.ask(stream, inputs.question, trial=trial)]
        return _run(perf_counter() - start, answers, trial)

    def run_files(self, inputs: BenchInputs, output: Path) -> BenchRun:
        """From the images' files to rows of JSON in a file, as a command writes them."""
        self._engine.batch_size = inputs.batch
        trial = Trial(inputs.lengths)
        start = perf_counter()
        answers = self._pipeline(self._engine, inputs.files, inputs.question, trial, output)
        return _run(perf_counter() - start, answers, trial)


def _run(seconds: float, answers: Iterable[Answer], trial: Trial) -> BenchRun:
    vision = prefill = decode = 0.0
    for answer in answers:
        if answer.error is not None:
            raise UsageError(
                f"{answer.id} cannot be measured with: {answer.error_message}",
                hint="name a folder of readable images with --images, or leave it out",
            )
        vision += (answer.vision_ms or 0.0) / 1000
        prefill += (answer.prefill_ms or 0.0) / 1000
        decode += (answer.decode_ms or 0.0) / 1000
    tokens = tuple(trial.tokens[row] for row in sorted(trial.tokens))
    return BenchRun(seconds, Stages(vision, prefill, decode), tokens)
