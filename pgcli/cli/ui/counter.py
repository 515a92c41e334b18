"""Things done, counted on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import LOG_SECONDS, NARROW

Thing = TypeVar("Thing")


def counted(
    things: Iterable[Thing], total: int, screen: Screen, called: str = "pictures"
) -> Iterator[Thing]:
    """The same things, each counted as it is taken."""
    if screen.quiet or not screen.redraws:
        yield from logged(things, total, screen, called)
        return
    narrow = screen.console.width < NARROW
    with RichProgress(
        *([] if narrow else [TextColumn(called, style="bold")]),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *([] if narrow else [TimeRemainingColumn(compact=True)]),
        console=screen.console,
        transient=True,
        redirect_stdout=False,
        expand=True,
    ) as bar:
        task = bar.add_task("", total=total)
        for thing in things:
            yield thing
            bar.advance(task)


def logged(things: Iterable[Thing], total: int, screen: Screen, called: str) -> Iterator[Thing]:
    """The same, without a bar."""
    said = perf_counter()
    for number, thing in enumerate(things, 1):
        yield thing
        if perf_counter() - said >= LOG_SECONDS:
            said = perf_counter()
            screen.say(f"{called}: {number:,} of {total:,}")
