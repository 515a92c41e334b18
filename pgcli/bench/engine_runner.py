"""pgcli as a program under measurement, with the engine of its runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from pgcli.bench.roofline import Stages
from pgcli.bench.runner import BenchInputs, BenchRun
from pgcli.device.decoding import decoding_processes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.sampler import SamplingParams
from pgcli.engine.sequence import Sequence as EngineSequence
from pgcli.errors import UsageError
from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.output.lines import json_line
from pgcli.records import Answer, DecodedImage, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.run.state.lines import RowFile
from pgcli.run.workers.answer import answer_items
from pgcli.tasks import Question


class TokenRecorder:
    """Makes an engine answer with exact numbers of tokens, by row index, and records the tokens.

    Batches never shrink, so the measured batch size is the requested one. `first_image` is the time
    at which the first image arrived.
    """

    def __init__(self, lengths: Sequence[int]):
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.first_image: float | None = None
        self._sampling = [
            SamplingParams(max_new_tokens=length, ignore_eos=True) for length in lengths
        ]

    def ask(
        self,
        engine: InferenceEngine,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
    ) -> Iterator[tuple[int, Answer]]:
        """The engine's answers; records their tokens."""
        engine.batch_limits.is_fixed = True
        return engine.ask(self._noted(stream), question, self._sampling, on_finish=self._record)

    def _noted(
        self, stream: Iterable[tuple[int, DecodedImage]]
    ) -> Iterator[tuple[int, DecodedImage]]:
        for numbered in stream:
            self.first_image = self.first_image or perf_counter()
            yield numbered

    def _record(self, sequence: EngineSequence) -> None:
        self.tokens[sequence.row_index] = tuple(sequence.tokens)


class EngineRunner:
    """The engine, which makes its own batches from a stream of images."""

    def __init__(self, engine: InferenceEngine, *, name: str = "pgcli"):
        self.name, self._engine = name, engine

    def run_arrays(self, inputs: BenchInputs) -> BenchRun:
        """From the images' pixels in memory to every row's tokens."""
        self._engine.batch_size = inputs.batch
        recorder, prompts = TokenRecorder(inputs.lengths), inputs.question.templates or ()
        kept, start = self._engine.kept_bytes, perf_counter()
        stream = (
            (number, replace(image, item=replace(image.item, prompts=prompts)))
            for number, image in enumerate(inputs.images)
        )
        rows = recorder.ask(self._engine, stream, inputs.question)
        answers = [answer for _, answer in rows]
        return _run(perf_counter() - start, 0.0, answers, recorder, kept)

    def run_files(self, inputs: BenchInputs, output: Path) -> BenchRun:
        """From the images' files to rows of JSON in a file, as a command writes them.

        The decoding processes of a command start while the model loads; here their start is
        measured separately, up to the first decoded image.
        """
        self._engine.batch_size = inputs.batch
        recorder = TokenRecorder(inputs.lengths)
        kept, start = self._engine.kept_bytes, perf_counter()
        answers = []
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with closing(RowFile(descriptor, output)) as rows:
            for answer in self._answers(inputs, recorder):
                rows.append(json_line(answer, RowSchema()).encode())
                answers.append(answer)
        end, first_image = perf_counter(), recorder.first_image or start
        return _run(end - start, first_image - start, answers, recorder, kept)

    def _answers(self, inputs: BenchInputs, recorder: TokenRecorder) -> Iterator[Answer]:
        """The answers of the images' files, which are decoded as for a command."""
        engine, question = self._engine, inputs.question
        prompts = question.templates or ()
        names = enumerate(map(str, inputs.files))
        return answer_items(
            (Item(number, name, name, path=name, prompts=prompts) for number, name in names),
            partial(
                decode_ahead,
                decoder=ImageDecoder(replace(engine.spec, fast_decode=inputs.fast_decode)),
                workers=None,
                total=len(inputs.files),
                default_workers=decoding_processes(engine.device),
            ),
            lambda stream: recorder.ask(engine, stream, question),
            partial(error_answer, task=question.task, model=engine.label),
        )


def _run(
    seconds: float, start: float, answers: Iterable[Answer], recorder: TokenRecorder, kept: int
) -> BenchRun:
    vision = prefill = decode = 0.0
    for answer in answers:
        if answer.error is not None:
            raise UsageError(
                f"cannot measure with {answer.id}: {answer.error_message}",
                hint="name a folder of readable images with --source, or drop it",
            )
        vision += (answer.vision_ms or 0.0) / 1000
        prefill += (answer.prefill_ms or 0.0) / 1000
        decode += (answer.decode_ms or 0.0) / 1000
    tokens = tuple(recorder.tokens[row] for row in sorted(recorder.tokens))
    stages = Stages(vision, prefill, decode)
    return BenchRun(seconds, stages, tokens, start_seconds=start, kept_bytes=kept)
