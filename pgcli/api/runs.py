"""Runs from Python: saved, checked and resumed as by the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from signal import SIGINT, raise_signal
from typing import Any, Unpack, get_args

from pgcli.api import Engine, load
from pgcli.api.call_options import CallOptions
from pgcli.api.row_manifest import as_sources
from pgcli.api.sources import source_list
from pgcli.checkpoints.files import ADAPTER_CONFIG
from pgcli.checkpoints.find import DEMO
from pgcli.cli.commands.learning import run_training
from pgcli.cli.config import ProgramOptions, outside_values
from pgcli.cli.console import Screen, StderrStyle
from pgcli.cli.run_on_screen import run_request
from pgcli.declare import parse_keywords
from pgcli.errors import UsageError, called_from_python
from pgcli.output import PLAIN_TEXT, output_endings, output_format
from pgcli.process_end import end_requests
from pgcli.records import Task
from pgcli.results import Results, read
from pgcli.run.progress.shutdown import Interrupted
from pgcli.run.request.make import make_request, records_of
from pgcli.run.status import read_status
from pgcli.stores.files import read_json
from pgcli.training.metrics_file import METRICS, read_metrics
from pgcli.training.options import TRAIN_RECORDS, TrainOptions

PathName = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A finished run: its output, its row count, and its failed rows by error code.

    Rows of earlier runs into the same output count too.
    """

    output: str
    rows: int
    errors: Mapping[str, int]

    def read(self) -> Results:
        """The answers, all in memory."""
        return read(self.output)


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """A finished training run: its folder, and the number of its updates.

    `best` has the step and the values of the best evaluation, if there were evaluations;
    `unreadable` are the ids of rows that could not be used. An adapter is for the `model` with the
    `revision`; else the folder is the model.
    """

    folder: str
    steps: int
    best: Mapping[str, float]
    unreadable: tuple[str, ...]
    model: str | None
    revision: str | None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, one for each update."""
        return read_metrics(Path(self.folder, METRICS))

    def load(self, **options: Unpack[CallOptions]) -> Engine:
        """The best weights as an engine; takes the options of `pgcli.load`."""
        if (Path(self.folder) / ADAPTER_CONFIG).exists():
            options = {"revision": self.revision, "adapter": self.folder, **options}
            return load(self.model or DEMO, **options)
        return load(self.folder, **options)


@called_from_python
def run(
    command: Task,
    sources: PathName | Iterable[PathName],
    *,
    output: PathName,
    **options: Unpack[CallOptions],
) -> RunReport:
    """Answer as `pgcli COMMAND SOURCES -o OUTPUT` does; the same call again resumes the run.

    Options are named as on the command line with `_` instead of `-`: `model="demo"`,
    `prompt=["how many?", "what colour?"]`, `keep=["sku"]`, `retry_errors=True`. PGCLI_* and the
    configuration file apply too. `progress` shows progress, notices and the summary on stderr.
    Ctrl-C finishes the rows in progress and raises KeyboardInterrupt.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    if command not in get_args(Task):
        raise UsageError(f"{command} is not a task", hint=f"one of {', '.join(get_args(Task))}")
    progress, target = options.pop("progress", False), os.fspath(output)
    if target == "-" or output_format(target, options.get("format") or "auto") == PLAIN_TEXT:
        raise UsageError(
            f"{target} is not resumable",
            hint=f"name a {output_endings()} file, or a folder/",
        )
    names, typed = source_names(sources), without_none(options) | {"output": target}
    with read_values(command, records_of(command), typed, progress=progress) as values:
        run_request(make_request(command, names, values, typed=typed.keys()))
    status = read_status(target)
    return RunReport(target, status.rows, status.errors)


@called_from_python
def train(
    sources: PathName | Iterable[PathName | Mapping[str, Any]],
    *,
    output: PathName,
    progress: bool = False,
    **options: Any,
) -> TrainingReport:
    """Train as `pgcli train SOURCES -o OUTPUT` does; the same call again resumes the run.

    Rows may be dicts with an `image`, which may be in memory, a `prefix` and a `suffix`, or
    other columns that the task reads, also in `eval`. Options have the names of the command line,
    with `_` in place of `-`: `model="demo"`, `epochs=10`, `freeze=["vision", "projector"]`.
    `progress` shows progress, evaluations and the summary on stderr. Ctrl-C ends after the update
    in progress and raises KeyboardInterrupt.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    rows = source_list(sources)
    with as_sources(rows) as names, as_sources(options.pop("eval", None) or []) as held_out:
        if len(held_out) > 1:
            raise UsageError("eval= takes one source", hint="give one manifest, or dicts")
        typed = without_none(options) | {"output": os.fspath(output)}
        if held_out:
            typed["eval"] = held_out[0]
        if any(isinstance(row, Mapping) for row in rows):  # in a manifest in a folder of its own
            typed.setdefault("allow_outside_root", True)
        with read_values("train", TRAIN_RECORDS, typed, progress=progress) as values:
            run_training(TrainOptions.of(names, values, typed.keys()))
    folder = Path(output)
    result = (read_json(folder / "run.json") or {}).get("result", {})
    return TrainingReport(
        str(folder),
        result.get("step", 0),
        result.get("best", {}),
        tuple(result.get("unreadable", ())),
        options.get("model"),
        options.get("revision"),
    )


def without_none(options: Mapping[str, object]) -> dict[str, Any]:
    """The keywords that are not None; None leaves an option unset."""
    return {name: value for name, value in options.items() if value is not None}


def source_names(sources: PathName | Iterable[PathName]) -> list[str]:
    """The names of sources, as the command line has them."""
    named = [sources] if isinstance(sources, str | os.PathLike) else sources
    return [os.fspath(source) for source in named]


@contextmanager
def read_values(
    command: str, records: tuple[type, ...], keywords: Mapping[str, Any], *, progress: bool
) -> Iterator[dict[str, Any]]:
    """The values of all options for a run within the block; keywords take precedence.

    Messages are written as `log_format` and `no_progress` say. An interrupted run raises
    KeyboardInterrupt.
    """
    records = (*records, ProgramOptions)
    typed = parse_keywords(records, keywords)
    values = outside_values(command, records, typed.get("config"))
    values |= {"quiet": not progress} | typed
    before = Screen.style
    Screen.style = StderrStyle(values.get("log_format", "text"), values.get("no_progress", False))
    try:
        yield values
    except Interrupted as interrupted:
        end_requests(inf)  # the caller may continue
        if interrupted.signum == SIGINT:
            raise KeyboardInterrupt from None
        raise_signal(interrupted.signum)  # whose handler is the caller's again
        raise
    finally:
        Screen.style = before
