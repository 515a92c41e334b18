"""Side outputs of each row: drawings, sidecar files, terminal images, a page at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pgcli.cli.ui.console import Facts
from pgcli.records import Answer, Item


class RowHook:
    """A side output. It is called for each item and row, in order; each method may do nothing."""

    #: What a terminal shows above the text of a row.
    header: Callable[[Answer], str] | None = None
    #: The number of items that `wrap_items` left out.
    not_asked = 0

    def wrap_items(self, items: Iterable[Item]) -> Iterable[Item]:
        """The items, seen by the hook as they enter the pipeline; it may leave some out."""
        return items

    def on_row(self, answer: Answer) -> None:
        """Called for each new row before it is saved."""

    def on_skipped_row(self, item: Item, row_index: int) -> None:
        """Called for each row that an earlier run saved, with its index in the output."""

    def on_complete(self, *, quiet: bool) -> None:
        """Called once when the output is complete."""

    def summary(self) -> str:
        """What was written; empty for nothing."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class RowHooks(RowHook):
    """Several hooks called as one. Their names are those in the summary."""

    def __init__(self, **hooks: RowHook | None):
        self._hooks = {name: hook for name, hook in hooks.items() if hook is not None}
        self._stack = ExitStack()
        self.header = next((hook.header for hook in self._hooks.values() if hook.header), None)

    def wrap_items(self, items: Iterable[Item]) -> Iterable[Item]:
        for hook in self._hooks.values():
            items = hook.wrap_items(items)
        return items

    def on_row(self, answer: Answer) -> None:
        for hook in self._hooks.values():
            hook.on_row(answer)

    def on_skipped_row(self, item: Item, row_index: int) -> None:
        for hook in self._hooks.values():
            hook.on_skipped_row(item, row_index)

    def on_complete(self, *, quiet: bool) -> None:
        for hook in self._hooks.values():
            hook.on_complete(quiet=quiet)

    @property
    def left_out(self) -> int:
        """The number of items that the hooks left out."""
        return sum(hook.not_asked for hook in self._hooks.values())

    def facts(self) -> Facts:
        """The hooks' summaries by their names."""
        return [(name, text) for name, hook in self._hooks.items() if (text := hook.summary())]

    def __enter__(self) -> Self:
        for hook in self._hooks.values():
            self._stack.enter_context(hook)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, problem, trace)
