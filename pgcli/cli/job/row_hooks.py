"""What is made of answers beside their rows: drawings, texts beside pictures, pictures shown."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pgcli.cli.job.draw.painter import NotDrawing
from pgcli.cli.ui.console import Facts
from pgcli.records import Answer, Item


class RowHooks:
    """All of them as one, by their names in the summary: told of every item and row."""

    def __init__(self, **parts: NotDrawing):
        self._parts = parts
        self._stack = ExitStack()

    def watch(self, items: Iterable[Item]) -> Iterable[Item]:
        """The same items, as they go by."""
        for part in self._parts.values():
            items = part.watch(items)
        return items

    def draw(self, answer: Answer) -> None:
        """Make what is to be made of the row, which is about to be saved."""
        for part in self._parts.values():
            part.draw(answer)

    def skip(self, item: Item) -> None:
        """Leave out a row that was saved before."""
        for part in self._parts.values():
            part.skip(item)

    def facts(self) -> Facts:
        """What was made, for the summary."""
        return [(name, what) for name, part in self._parts.items() if (what := part.told())]

    def __enter__(self) -> Self:
        for part in self._parts.values():
            self._stack.enter_context(part)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, problem, trace)
