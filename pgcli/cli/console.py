"""Messages, tables and progress on stderr, and data on standard output.

Foreign text is made printable here, also in warnings and log records of libraries.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pgcli.cli.exits import discard_output
from pgcli.errors import in_flags
from pgcli.run.events import Facts
from pgcli.text import printable

if TYPE_CHECKING:
    from pgcli.cli.progress import StageProgress


#: Characters of a message that are shown; a name in it may be as long as a line of a manifest.
MAX_MESSAGE_LENGTH = 4000
#: Seconds before the first bar of a command that mostly takes less, such as `apply`.
BAR_DELAY = 2.0
#: The folder of this package, in which warnings of its own come from.
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


class Stderr(Console):
    """A Rich console on stderr that drops messages once it cannot write them.

    The terminal may be closed, the reader of a pipe gone or the disk of a log full: the run
    continues, because its rows count. Rich would exit where a pipe is broken.
    """

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        discard_output(2)

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:
            discard_output(2)


@dataclass
class StderrStyle:
    """How this process writes to stderr: as text or as JSON lines, with progress or without."""

    log_format: Literal["text", "json"] = "text"
    no_progress: bool = False


class Screen:
    """Shows messages, tables and progress on stderr. With `quiet`, it shows errors only.

    It draws no bar in its first `bar_delay` seconds.
    """

    #: The style of all screens of the running command line, which share one stderr.
    style = StderrStyle()

    def __init__(self, *, quiet: bool = False, bar_delay: float = 0.0):
        self.console = Stderr()
        self._first_bar = perf_counter() + bar_delay
        self.quiet = quiet
        self.is_terminal = is_terminal(sys.stderr) and not self.is_json

    @property
    def is_json(self) -> bool:
        """Whether stderr is a log of JSON lines."""
        return self.style.log_format == "json"

    def info(self, message: str, *, hint: str = "") -> None:
        """Show a message, unless quiet."""
        if self.quiet:
            return
        message, hint = in_flags(message), in_flags(hint)
        self.event("message", message=message, hint=hint)
        self._print_message("bold", message, hint)

    def error(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        """Show what went wrong and how to fix it, one line each."""
        self.event("error", message=message, hint=hint, exit_code=exit_code)
        self._print_message("bold red", message, hint)

    def traceback(self, entries: Iterable[str]) -> None:
        """Show a traceback; its message may hold foreign text."""
        lines = [*traceback_lines(entries)]
        self.event("traceback", lines=lines)
        for line in lines:
            self._print("", "", line)

    def event(self, name: str, **values: object) -> None:
        """Write an event to a log of JSON lines; nothing in other logs."""
        if self.is_json:
            line = event_line(name, **{key: sanitized(value) for key, value in values.items()})
            self.console.print(Text(line), soft_wrap=True)

    def table(self, facts: Facts) -> None:
        """Show names and values side by side, unless quiet; in a log, one line each."""
        if self.quiet:
            return
        self.event("table", facts=facts)
        if self.is_terminal:
            self.console.print("", facts_table(facts), sep="\n")
        else:
            for name, value in facts:
                self._print("pgcli: ", "bold", f"{name}: {value}")

    @property
    def shows_rows(self) -> bool:
        """Whether the rows of standard output appear on the same terminal."""
        return self.is_terminal and shares_terminal()

    def status(self, message: str) -> StageProgress:
        """The progress of a task without a count, such as loading a model: how long it takes."""
        return self.progress(message, unit="")

    def progress(
        self, task: str, total: int | None = None, *, initial: int = 0, unit: str = "rows"
    ) -> StageProgress:
        """The progress of a task: a bar on a terminal, lines in a log, nothing with `quiet`."""
        from pgcli.cli.progress import StageProgress

        def log(progress: StageProgress) -> None:
            if not self.is_json:
                self.info(f"{progress.task}: {progress.line()}")
            self.event("progress", **progress.values())

        is_logged = not (self.quiet or self.style.no_progress or self._draws_bars)
        return StageProgress(
            task,
            total,
            initial=initial,
            unit=unit,
            console=self.console if self._draws_bars else None,
            delay=self._first_bar - perf_counter(),
            log=log if is_logged else None,
            logs_ends=self.is_json,
        )

    @property
    def _draws_bars(self) -> bool:
        is_hidden = self.quiet or self.style.no_progress or self.console.is_dumb_terminal
        return self.is_terminal and not is_hidden

    def _print_message(self, style: str, message: str, hint: str) -> None:
        self._print("pgcli: ", style, message)
        if hint:
            self._print("hint: ", "bold", hint, is_command=True)

    def _print(self, label: str, style: str, message: str, *, is_command: bool = False) -> None:
        """Print a line, except in a log of JSON lines, which has its event.

        On a terminal it wraps between words; the terminal itself wraps a command, so that a copy
        of it has no line breaks.
        """
        if self.is_json:
            return
        line = Text.assemble((label, style), printable(presentable(message)))
        self.console.print(line, soft_wrap=is_command or not self.is_terminal)


def event_line(event: str, **values: object) -> str:
    """The event with its time (UTC) as one line of ASCII; empty values are omitted."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    fields = {name: value for name, value in values.items() if value not in (None, "")}
    return json.dumps({"time": time, "event": event, **fields})


def sanitized(value: object) -> object:
    """The value of an event, in which texts have no credentials and are not too long."""
    if isinstance(value, str):
        return presentable(value)
    if isinstance(value, list | tuple):
        return [sanitized(entry) for entry in value]
    return value


def presentable(message: str) -> str:
    """The message without credentials, and without its middle if it is very long."""
    from pgcli.stores.urls import without_credentials  # takes 0.03 s

    message = without_credentials(message)
    if (surplus := len(message) - MAX_MESSAGE_LENGTH) <= 0:
        return message
    half = MAX_MESSAGE_LENGTH // 2
    return f"{message[:half]}… ({surplus:,} more characters) …{message[-half:]}"


def traceback_lines(entries: Iterable[str]) -> Iterator[str]:
    """The lines of a traceback; further lines of a message are indented and cannot forge one."""
    for entry in entries:
        first, *more = entry.splitlines() or [""]
        yield printable(first)
        yield from (printable(line if line.startswith(" ") else f"    {line}") for line in more)


def facts_table(facts: Facts) -> Table:
    """Names and values as a table without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal; None is one that was closed before the program began."""
    return stream is not None and stream.isatty()


def shares_terminal() -> bool:
    """Whether standard output and stderr are the same terminal."""
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        return False
    out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    return out.st_rdev == err.st_rdev


def print_line(text: str) -> None:
    """Print one line."""
    typer.echo(printable(text))


def print_cells(texts: Iterable[str]) -> None:
    """Print one line of cells separated by tabs, for other programs."""
    typer.echo("\t".join(map(printable, texts)))


def print_json(value: object) -> None:
    """Print one JSON object in ASCII."""
    typer.echo(json.dumps(value, indent=2))


def print_facts(facts: Facts) -> None:
    """Print names and values: as a table on a terminal, else one line of two cells each."""
    if draws_tables():
        print_tables(facts_table(facts))
        return
    for fact in facts:
        print_cells(fact)


def draws_tables() -> bool:
    """Whether standard output is a terminal, on which tables are drawn."""
    return is_terminal(sys.stdout)


def print_tables(*tables: RenderableType) -> None:
    """Print tables below each other; their cells are `Text` of printable text."""
    Console(highlight=False, markup=False, emoji=False).print(*tables, sep="\n")


@contextmanager
def sanitized_logs() -> Iterator[None]:
    """Make warnings, log records and uncaught errors printable for the duration of the block.

    Libraries put file names and a server's answers into them, and Python writes them unchanged.
    Warnings of this package are shown as messages, without the line of code.
    """
    format_warning, make_record = warnings.formatwarning, logging.getLogRecordFactory()
    threading_hook, unraisable_hook = threading.excepthook, sys.unraisablehook

    def sanitized_warning(
        message: Warning | str, category: type[Warning], filename: str, *line: Any, **options: Any
    ) -> str:
        text = printable(presentable(str(message)))
        if Screen.style.log_format == "json":
            return event_line("warning", message=text, category=category.__name__) + "\n"
        if filename.startswith(PACKAGE):
            return f"pgcli: {text}\n"
        return format_warning(text, category, filename, *line, **options)

    def sanitized_record(*arguments: Any, **options: Any) -> logging.LogRecord:
        return sanitize_record(make_record(*arguments, **options))

    warnings.formatwarning = sanitized_warning
    logging.setLogRecordFactory(sanitized_record)
    threading.excepthook, sys.unraisablehook = show_thread_error, show_unraisable
    try:
        yield
    finally:
        warnings.formatwarning = format_warning
        logging.setLogRecordFactory(make_record)
        threading.excepthook, sys.unraisablehook = threading_hook, unraisable_hook


def sanitize_record(record: logging.LogRecord) -> logging.LogRecord:
    """The record with its message on one line, and its traceback as printable text."""
    message, record.args = printable(presentable(record.getMessage())), None
    if Screen.style.log_format == "json":
        level, record.exc_info = record.levelname.lower(), None
        record.msg = event_line("log", level=level, logger=record.name, message=message)
        return record
    record.msg = message
    if record.exc_info:
        lines = traceback_lines(traceback.format_exception(*record.exc_info))
        record.exc_text = presentable("\n".join(lines))
    return record


def show_thread_error(hook: threading.ExceptHookArgs) -> None:
    """Show the exception that ended a thread, except SystemExit."""
    if hook.exc_type is not SystemExit and hook.exc_value is not None:
        Screen().traceback(traceback.format_exception(hook.exc_value))


def show_unraisable(hook: sys.UnraisableHookArgs) -> None:
    """Show an exception that could not be raised, for example one of a finalizer."""
    if hook.exc_value is not None:
        message = hook.err_msg or "exception ignored in"
        entries = traceback.format_exception(hook.exc_value)
        Screen().traceback([f"{message}: {hook.object!r}\n", *entries])
