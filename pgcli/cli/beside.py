"""What is made of answers beside their rows: drawings, and texts beside the pictures."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pgcli.cli.drawing.painter import NotDrawing
from pgcli.cli.screen import Facts
from pgcli.records import Answer, Item


class Beside:
    """Both of them as one: told of every item, and of every row in its turn."""

    def __init__(self, drawing: NotDrawing, sidecars: NotDrawing):
        self._drawing, self._sidecars = drawing, sidecars
        self._stack = ExitStack()

    def watch(self, items: Iterable[Item]) -> Iterable[Item]:
        """The same items, as they go by."""
        return self._sidecars.watch(self._drawing.watch(items))

    def draw(self, answer: Answer) -> None:
        """Make what is to be made of the row, which is about to be saved."""
        self._sidecars.draw(answer)
        self._drawing.draw(answer)

    def skip(self, item: Item) -> None:
        """Leave out a row that was saved before."""
        self._sidecars.skip(item)
        self._drawing.skip(item)

    def facts(self) -> Facts:
        """What was made, for the summary."""
        told = [("drawn", self._drawing.told()), ("sidecars", self._sidecars.told())]
        return [(name, what) for name, what in told if what]

    def __enter__(self) -> Self:
        self._stack.enter_context(self._drawing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, problem, trace)
