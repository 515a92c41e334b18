"""What is made of each row once it is saved: a drawing, a text beside the image, a page."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.records import Answer, Item


class RowHook:
    """Something made of each row once it is saved; this one makes nothing."""

    def skips(self, item: Item) -> bool:
        """Whether the image need not be asked, where rows go to standard output only.

        Called in input order, for each item before its rows.
        """
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Called for each row in input order; `is_saved` if an earlier run has saved it."""

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        """Names and texts for the summary. Called once, also after a failure (not `complete`)."""
        return ()
