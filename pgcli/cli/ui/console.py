"""What a person sees on stderr: messages and tables; foreign text in them is made harmless here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgcli.cli.job import shutdown
from pgcli.printable import printable

if TYPE_CHECKING:
    from pgcli.cli.ui.progress import Progress, Rows

#: A name in a message may be as long as a line of a manifest.
LONGEST = 4000
#: What a table shows: names and values, row by row.
Facts = Sequence[tuple[str, str]]


class Stderr(Console):
    """A console on stderr. A reader that has gone is the program's business; Rich would exit.

    A terminal that was closed or a disk that is full of messages takes nothing any more, and a run
    that nobody ended goes on.
    """

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except BrokenPipeError:
            raise
        except OSError:
            shutdown.forget(2)


class Screen:
    """Where messages go. With `quiet`, only problems are shown."""

    def __init__(self, *, quiet: bool = False):
        self.console = Stderr()
        self.quiet = quiet
        self.is_terminal = is_terminal(sys.stderr)
        self.redraws = self.is_terminal and not self.console.is_dumb_terminal
        self._rows: Rows | None = None
        #: Who writes down what is said, also where it is not shown.
        self.noted: Callable[[str], None] = lambda line: None

    def say(self, message: str, *, hint: str = "") -> None:
        """Show a message, unless quiet."""
        self.noted(message)
        if not self.quiet:
            self._line("pgcli: ", "bold", message)
            if hint:
                self._line("hint: ", "bold", hint)

    def problem(self, message: str, *, hint: str = "") -> None:
        """Show what went wrong and what mends it, a line each."""
        self._line("pgcli: ", "bold red", message)
        if hint:
            self._line("hint: ", "bold", hint)

    def trace(self, entries: Iterable[str]) -> None:
        """Show a traceback, whose last words may come from anywhere."""
        for line in traced(entries):
            self._line("", "", line)

    def table(self, facts: Facts) -> None:
        """Show names and values side by side, unless quiet; in a log, a line each."""
        if self.is_terminal or self.quiet:
            for name, value in facts:
                self.noted(f"{name}: {value}")
        if self.is_terminal and not self.quiet:
            self.console.print("", grid(facts), sep="\n")
        elif not self.quiet:
            for name, value in facts:
                self.say(f"{name}: {value}")

    def steps(self, steps: Facts) -> None:
        """Show what to do next, unless quiet. The terminal breaks commands, so that a copy of one
        is whole.
        """
        width = max((len(name) for name, _ in steps), default=0) + 2
        if steps and self.is_terminal and not self.quiet:
            self.console.print()
        for name, command in steps:
            if not self.is_terminal or self.quiet:
                self.say(f"{name}: {command}")
                continue
            self.noted(f"{name}: {command}")
            line = Text.assemble((name.ljust(width), "bold"), printable(command))
            self.console.print(line, soft_wrap=True)

    @property
    def has_rows(self) -> bool:
        """Whether a person reads rows, too, above what is said here."""
        return self.is_terminal and is_one_terminal()

    @contextmanager
    def waiting(self, message: str) -> Iterator[None]:
        """A block that takes a while; the message stands there as long as it does."""
        if self.quiet or not self.redraws:
            yield
            return
        with self.console.status(Text(printable(message)), refresh_per_second=5):
            yield

    def rows(self) -> BinaryIO | None:
        """Where standard output's rows go so that they and the bar on its terminal keep apart.

        None where they meet no bar, and can go to standard output itself.
        """
        from pgcli.cli.ui.progress import Rows

        if self.quiet or not self.redraws or not is_one_terminal():
            return None
        self._rows = Rows(self.console)
        return cast(BinaryIO, self._rows)

    def progress(self, task: str, total: int | None, before: int = 0) -> Progress:
        """What shows how a run of `total` rows goes on: a bar, or lines where none can be drawn.

        So many rows were there `before` it.
        """
        from pgcli.cli.ui.progress import Bar, Log, Nothing

        if self.quiet:
            return Nothing(before)
        if self.redraws:
            return Bar(self.console, task, total, self._rows, before)
        return Log(self.say, task, total, before)

    def _line(self, label: str, style: str, message: str) -> None:
        line = Text.assemble((label, style), shortened(printable(message)))
        # a log's line is one line; on a terminal it breaks between words
        self.console.print(line, soft_wrap=not self.is_terminal)


def shortened(message: str) -> str:
    """The message with its middle left out where a name in it is longer than anybody reads."""
    left_out = len(message) - LONGEST
    if left_out <= 0:
        return message
    half = LONGEST // 2
    return f"{message[:half]}… ({left_out:,} more characters) …{message[-half:]}"


def traced(entries: Iterable[str]) -> Iterator[str]:
    """A traceback's lines. A message of several goes on indented, and can forge no line of ours."""
    for entry in entries:
        first, *more = entry.splitlines() or [""]
        yield printable(first)
        yield from (printable(line if line.startswith(" ") else f"    {line}") for line in more)


def grid(facts: Facts) -> Table:
    """Names and values as a table without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal; one that was closed before the program began is None."""
    return stream is not None and stream.isatty()


def is_one_terminal() -> bool:
    """Whether standard output and stderr are the same terminal, and can garble each other."""
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        return False
    out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    return out.st_rdev == err.st_rdev
