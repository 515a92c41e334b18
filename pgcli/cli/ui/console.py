"""Messages, tables and progress on stderr; foreign text in them is made printable here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO, Literal, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgcli.cli.program_name import with_program_name
from pgcli.cli.streams import discard_output
from pgcli.printable import printable
from pgcli.stores.urls import without_credentials

if TYPE_CHECKING:
    from pgcli.cli.ui.progress import StageProgress
    from pgcli.cli.ui.progress_bar import OutputAboveBar

#: Characters of a message that are shown; a name in it may be as long as a line of a manifest.
MAX_MESSAGE_LENGTH = 4000
#: The rows of a table of two columns: names and values.
Facts = Sequence[tuple[str, str]]


class Stderr(Console):
    """A Rich console on stderr whose messages are dropped once they cannot be written.

    The terminal may be closed, the reader of a pipe gone or the disk of a log full: the run
    continues, as its rows are what counts. Rich would exit where a pipe is broken.
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
    """Shows messages, tables and progress on stderr. With `quiet`, it shows errors only."""

    #: The style of all screens, as there is one stderr: that of the command line in progress.
    style = StderrStyle()

    def __init__(self, *, quiet: bool = False):
        self.console = Stderr()
        self.quiet = quiet
        self.is_terminal = is_terminal(sys.stderr) and not self.is_json
        self.is_interactive = self.is_terminal and not self.console.is_dumb_terminal
        self._output: OutputAboveBar | None = None

    @property
    def is_json(self) -> bool:
        """Whether stderr is a log of JSON lines."""
        return self.style.log_format == "json"

    def info(self, message: str, *, hint: str = "") -> None:
        """Show a message, unless quiet."""
        if self.quiet:
            return
        self.event("message", message=message, hint=hint)
        self._print("pgcli: ", "bold", message)
        if hint:
            self._print("hint: ", "bold", with_program_name(hint), is_command=True)

    def error(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        """Show what went wrong and how to fix it, one line each."""
        self.event("error", message=message, hint=hint, exit_code=exit_code)
        self._print("pgcli: ", "bold red", message)
        if hint:
            self._print("hint: ", "bold", with_program_name(hint), is_command=True)

    def traceback(self, entries: Iterable[str]) -> None:
        """Show a traceback, whose message may hold foreign text."""
        lines = [*traceback_lines(entries)]
        self.event("traceback", lines=lines)
        for line in lines:
            self._print("", "", line)

    def event(self, name: str, **values: object) -> None:
        """Write an event to a log of JSON lines; nothing in other logs."""
        if self.is_json:
            from pgcli.cli.ui.event_log import event_line

            self._print_event(event_line(name, **{key: clean(one) for key, one in values.items()}))

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

    def stdout_above_bar(self) -> BinaryIO | None:
        """Standard output for rows that appear above the progress bar on the same terminal.

        None where no bar is drawn there; rows then go to standard output itself.
        """
        from pgcli.cli.ui.progress_bar import OutputAboveBar

        hides_bar = self.quiet or self.style.no_progress
        if hides_bar or not self.is_interactive or not shares_terminal():
            return None
        self._output = OutputAboveBar(self.console)
        return cast(BinaryIO, self._output)

    def progress(
        self, task: str, total: int | None = None, *, initial: int = 0, unit: str = "rows"
    ) -> StageProgress:
        """The progress of a task: a bar on a terminal, lines in a log, nothing with `quiet`."""
        from pgcli.cli.ui.progress import ProgressDisplay, ProgressLog, StageProgress
        from pgcli.cli.ui.progress_bar import ProgressBar

        display = ProgressDisplay()
        if self.quiet or self.style.no_progress:
            pass
        elif self.is_json:
            from pgcli.cli.ui.event_log import ProgressEvents

            display = ProgressEvents(self._print_event)
        elif self.is_interactive:
            display = ProgressBar(self.console, self._output)
        else:
            display = ProgressLog(self.info)
        return StageProgress(task, total, initial=initial, unit=unit, display=display)

    def _print_event(self, line: str) -> None:
        self.console.print(Text(printable(line)), soft_wrap=True)

    def _print(self, label: str, style: str, message: str, *, is_command: bool = False) -> None:
        """Print a line, except in a log of JSON lines, which has its event.

        On a terminal it wraps between words; the terminal itself wraps a command, so that a copy
        of it has no line breaks.
        """
        if self.is_json:
            return
        line = Text.assemble((label, style), shorten(printable(without_credentials(message))))
        self.console.print(line, soft_wrap=is_command or not self.is_terminal)


def clean(value: object) -> object:
    """The value of an event, in which texts have no credentials and are not too long."""
    if isinstance(value, str):
        return shorten(without_credentials(value))
    if isinstance(value, list | tuple):
        return [clean(one) for one in value]
    return value


def shorten(message: str) -> str:
    """The message without its middle where it is longer than `MAX_MESSAGE_LENGTH`."""
    left_out = len(message) - MAX_MESSAGE_LENGTH
    if left_out <= 0:
        return message
    half = MAX_MESSAGE_LENGTH // 2
    return f"{message[:half]}… ({left_out:,} more characters) …{message[-half:]}"


def traceback_lines(entries: Iterable[str]) -> Iterator[str]:
    """The lines of a traceback; the further lines of a message are indented and can forge none."""
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
