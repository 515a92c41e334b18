"""Runs from Python: saved, checked and resumed as by the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, raise_signal
from typing import Any, get_args

import typer

from pgcli.api import Engine, load
from pgcli.checkpoints.find import DEMO
from pgcli.checkpoints.json_file import ADAPTER_CONFIG
from pgcli.cli.main import call
from pgcli.cli.program_options import ProgramState
from pgcli.cli.result_files.run_status import read_run_status
from pgcli.cli.signals import Interrupted
from pgcli.errors import UsageError
from pgcli.records import Task
from pgcli.results import Results, read
from pgcli.sinks import output_format
from pgcli.state.atomic_file import read_json
from pgcli.training.metrics_file import METRICS, read_metrics

PathName = str | os.PathLike[str]
#: Options whose value is a list with commas; other lists repeat the option.
LISTS = ("keep", "region")


@dataclass(frozen=True, slots=True)
class RunReport:
    """A finished run: its output, the number of its rows, and of those with errors by their code.

    The rows are those of all runs that made the output.
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

    def load(self, **options: Any) -> Engine:
        """The best weights as an engine; the options are those of `pgcli.load`."""
        if (Path(self.folder) / ADAPTER_CONFIG).exists():
            base = {"revision": self.revision, "adapter": self.folder}
            return load(self.model or DEMO, **base | options)
        return load(self.folder, **options)


def run(
    command: Task,
    sources: PathName | Iterable[PathName],
    *,
    output: PathName,
    progress: bool = False,
    **options: Any,
) -> RunReport:
    """Answer as `pgcli COMMAND SOURCES -o OUTPUT` does; the same call again resumes the run.

    Options are those of the command line with `_` in place of `-`: `model="demo"`,
    `prompt=["how many?", "what colour?"]`, `keep=["sku"]`, `retry_errors=True`. PGCLI_* and the
    configuration file apply too. `progress` shows progress, notices and the summary on stderr.
    Ctrl-C finishes the rows in progress and raises KeyboardInterrupt.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    if command not in get_args(Task):
        raise UsageError(f"{command} is not a task", hint=f"one of {', '.join(get_args(Task))}")
    target = os.fspath(output)
    if target == "-" or output_format(target, options.get("format", "auto")) == "text":
        raise UsageError(
            f"{target} cannot be resumed", hint="name a .jsonl or .parquet file, or a folder/"
        )
    named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    options = {"quiet": not progress, **options, "output": target}
    call_command(command_line(command, [os.fspath(source) for source in named], options))
    status = read_run_status(Path(target))
    return RunReport(target, status.rows, status.errors)


def train(
    sources: PathName | Iterable[PathName],
    *,
    output: PathName,
    progress: bool = False,
    **options: Any,
) -> TrainingReport:
    """Train as `pgcli train SOURCES -o OUTPUT` does; the same call again resumes the run.

    Options are those of the command line with `_` in place of `-`: `model="demo"`, `epochs=10`,
    `eval_fraction=0.05`. `progress` shows progress, evaluations and the summary on stderr. Ctrl-C
    ends after the update in progress and raises KeyboardInterrupt.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    options = {"quiet": not progress, **options, "output": os.fspath(output)}
    call_command(command_line("train", [os.fspath(source) for source in named], options))
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


def call_command(words: Sequence[str]) -> None:
    """Run a command line. Raises KeyboardInterrupt for Ctrl-C, and the errors of the command."""
    try:
        call(words, ProgramState(arguments=tuple(words)))
    except typer.Abort:  # Ctrl-C before the first row
        raise KeyboardInterrupt from None
    except Interrupted as interrupted:
        if interrupted.signum == SIGINT:
            raise KeyboardInterrupt from None
        raise_signal(interrupted.signum)  # whose handler is the caller's again
        raise


def command_line(command: str, sources: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The words of the command line. None and False leave an option out."""
    words = [command]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is None or value is False:
            continue
        elif isinstance(value, str | os.PathLike) or not isinstance(value, Iterable):
            words.append(f"{flag}={value}")
        elif name in LISTS:
            words.append(f"{flag}={','.join(map(str, value))}")
        else:
            words += [f"{flag}={one}" for one in value]
    return [*words, "--", *sources]
