"""bench: this code beside transformers and against the limit of the machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli import __version__
from pgcli.bench.plan import Plan
from pgcli.checkpoints.find import Checkpoint, find
from pgcli.cli.commands.info import check_revision
from pgcli.cli.ui.bench_report import show
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.pipeline import run
from pgcli.records import Answer, DecodedImage, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.sinks import check_place
from pgcli.sinks.jsonl import JsonLines
from pgcli.sources import ReadOptions, open_sources
from pgcli.state.run_state import State
from pgcli.state.write_errors import writing
from pgcli.tasks import Question
from pgcli.workers import prefetch

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine
    from pgcli.engine.trial import Trial


def bench(
    name: str,
    plan: Plan,
    *,
    images: str | None,
    revision: str | None,
    device: str,
    dtype: str,
    outputs: tuple[str | None, str | None],
    overwrite: bool,
) -> None:
    """Measure, print tables, and write what was asked for: the JSON, and the plot.

    Pictures are those of `images`, or drawn ones. What the user can have got wrong shows first.
    """
    check_revision(name, revision)
    for named in filter(None, outputs):
        check_place(Path(named), overwrite=overwrite)
    given = None if images is None else open_sources([images], ReadOptions())
    screen = Screen()
    checkpoint = find(name, revision, progress=Downloads(screen))
    with screen.status("loading PyTorch and transformers"):
        from pgcli.bench.plot import svg
        from pgcli.bench.running import bench as measured
        from pgcli.proof.patterns import drawings

    report = measured(
        checkpoint,
        drawings() if given is None else iter(given),
        plan,
        device=device,
        dtype=dtype,
        pipeline=answered,
        waiting=screen.status,
    )
    show(report)
    told = json.dumps(about(checkpoint) | asdict(report), indent=2) + "\n"
    title = f"{checkpoint.label} on {report.machine.device}, {report.dtype}"
    for output, text in zip(outputs, (told, svg(report, title)), strict=True):
        if output is not None:
            with writing(output):
                Path(output).write_text(text, encoding="utf-8")


def about(checkpoint: Checkpoint) -> dict[str, object]:
    """Which model, and which version of this program."""
    return {
        "model": checkpoint.name,
        "path": str(checkpoint.folder),
        "revision": checkpoint.revision,
        "pgcli": __version__,
    }


def answered(
    engine: Engine, files: Sequence[Path], question: Question, trial: Trial, output: Path
) -> list[Answer]:
    """Answer about files as a run does, workers and all, into JSON lines; the answers too."""
    from pgcli.images import ImageDecoder

    prompts = question.templates or ()
    items = (Item(n, str(f), str(f), path=str(f), prompts=prompts) for n, f in enumerate(files))
    answers: list[Answer] = []

    def refuse(picture: DecodedImage, prompt: str) -> Answer:
        return error_answer(picture, prompt, task=question.task, model=engine.label)

    def ask(stream: Iterable[tuple[int, DecodedImage]]) -> Iterator[tuple[int, Answer]]:
        return engine.ask(stream, question, trial=trial)

    with State(output, overwrite=True) as state, JsonLines(state, RowSchema()) as sink:

        def save(answer: Answer) -> None:
            sink.save(answer)
            answers.append(answer)

        looking = partial(
            prefetch, decode=ImageDecoder(engine.spec), workers=None, total=len(files)
        )
        run(items, looking, ask, save, refuse, ledger=sink)
    return answers
