"""Hooks that write something for each saved row: a drawing, a text beside the image."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.records import Answer, Item


class RowHook:
    """Writes something for each saved row; this one writes nothing."""

    def skips(self, item: Item) -> bool:
        """Whether to skip the image; called in input order, before its rows."""
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Called for each row in input order; `is_saved` if an earlier run has saved it."""

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        """Names and texts for the summary. Called once, also after a failure (not `complete`)."""
        return ()
