"""Decodes, answers and saves image files, without hooks and progress, for `pgcli bench`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.device.decoding import decoding_processes
from pgcli.images import ImageDecoder
from pgcli.pipeline import run
from pgcli.records import Answer, DecodedImage, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.sinks import open_resumable
from pgcli.state.run_state import RunState
from pgcli.tasks import Question
from pgcli.workers import prefetch

if TYPE_CHECKING:
    from pgcli.bench.engine_runner import TokenRecorder
    from pgcli.engine.engine import InferenceEngine


def answer_files(
    engine: InferenceEngine,
    files: Sequence[Path],
    question: Question,
    recorder: TokenRecorder,
    output: Path,
) -> list[Answer]:
    """Answer the question about every file and write the rows to `output`; return the answers."""
    prompts = question.templates or ()
    items = (Item(n, str(f), str(f), path=str(f), prompts=prompts) for n, f in enumerate(files))
    answers: list[Answer] = []

    refuse = partial(error_answer, task=question.task, model=engine.label)

    def ask(stream: Iterable[tuple[int, DecodedImage]]) -> Iterator[tuple[int, Answer]]:
        return recorder.ask(engine, stream, question)

    with (
        RunState(output, overwrite=True) as state,
        open_resumable(state, RowSchema(), "jsonl", settings={}) as sink,
    ):

        def save(answer: Answer) -> None:
            sink.save(answer)
            answers.append(answer)

        decode = partial(
            prefetch,
            decode=ImageDecoder(engine.spec),
            workers=None,
            total=len(files),
            default_workers=decoding_processes(engine.device),
        )
        run(items, decode, ask, save, refuse, resume_log=sink)
    return answers
