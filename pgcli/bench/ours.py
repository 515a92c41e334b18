"""This code under measurement: the engine that answers, asked as a run asks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from pgcli.bench.roofline import Stages
from pgcli.bench.work import Run, Work
from pgcli.engine.engine import Engine
from pgcli.engine.trial import Trial
from pgcli.errors import UsageError
from pgcli.records import Answer
from pgcli.tasks import Question

#: Files -> answers, which are also written: the pipeline of the command line, with its workers.
Pipeline = Callable[[Engine, Sequence[Path], Question, Trial, Path], Sequence[Answer]]


class Ours:
    """The engine, which takes its batches from a stream of pictures."""

    def __init__(self, engine: Engine, pipeline: Pipeline, *, name: str = "pgcli"):
        self.name = name
        self._engine, self._pipeline = engine, pipeline

    def arrays(self, work: Work) -> Run:
        """From the pictures' pixels in memory to every row's tokens."""
        self._engine.batch_size = work.batch
        trial, prompts = Trial(work.lengths), work.question.templates or ()
        began = perf_counter()
        stream = (
            (number * len(prompts), replace(picture, item=replace(picture.item, prompts=prompts)))
            for number, picture in enumerate(work.pictures)
        )
        told = self._engine.ask(stream, work.question, trial=trial)
        answers = [answer for _, answer in told]
        return _run(perf_counter() - began, answers, trial)

    def files(self, work: Work, output: Path) -> Run:
        """From the pictures' files to rows of JSON in a file, as a command writes them."""
        self._engine.batch_size = work.batch
        trial = Trial(work.lengths)
        began = perf_counter()
        answers = self._pipeline(self._engine, work.files, work.question, trial, output)
        return _run(perf_counter() - began, answers, trial)


def _run(seconds: float, answers: Iterable[Answer], trial: Trial) -> Run:
    vision = prefill = decode = 0.0
    for answer in answers:
        if answer.error is not None:
            raise UsageError(
                f"{answer.id} cannot be measured with: {answer.error_message}",
                hint="name a folder of whole pictures with --images, or leave it out",
            )
        vision += (answer.vision_ms or 0.0) / 1000
        prefill += (answer.prefill_ms or 0.0) / 1000
        decode += (answer.decode_ms or 0.0) / 1000
    tokens = tuple(trial.tokens[place] for place in sorted(trial.tokens))
    return Run(seconds, Stages(vision, prefill, decode), tokens)
