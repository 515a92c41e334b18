"""Runs from Python: saved, checked and resumed as by the command line, and shown by it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from signal import SIGINT, raise_signal
from typing import Any, get_args

from pgcli.api.arguments import PathName, without_none
from pgcli.cli.config import ProgramOptions, outside_values
from pgcli.cli.console import Screen, StderrStyle
from pgcli.cli.run_on_screen import run_request
from pgcli.declare import parse_keywords
from pgcli.errors import UsageError, called_from_python
from pgcli.output import PLAIN_TEXT, output_endings, output_format
from pgcli.process_end import end_requests
from pgcli.records import Task
from pgcli.results import Results, read
from pgcli.run.events import Interrupted
from pgcli.run.request import make_request, records_of
from pgcli.run.status import read_status


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


@called_from_python
def run(
    command: Task,
    sources: PathName | Iterable[PathName],
    *,
    output: PathName,
    **options: Any,
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
    named = [sources] if isinstance(sources, str | os.PathLike) else sources
    names, typed = [os.fspath(name) for name in named], without_none(options) | {"output": target}
    with read_values(command, records_of(command), typed, progress=progress) as values:
        run_request(make_request(command, names, values, typed=typed.keys()))
    status = read_status(target)
    return RunReport(target, status.rows, status.errors)


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
