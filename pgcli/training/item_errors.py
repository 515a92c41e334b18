"""Counts the rows of a source whose images cannot be used, and ends a run of too many of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgcli.pipeline.error_budget import ErrorBudget
from pgcli.pipeline.tally import Tally
from pgcli.records import DecodedImage, Item, error_answer


@dataclass
class ItemErrors:
    """The rows that are read, before their images are; the `budget` is that of the run."""

    budget: ErrorBudget = field(default_factory=lambda: ErrorBudget(max_share=1.0))
    _tally: Tally = field(default_factory=Tally)

    def add(self, item: Item) -> None:
        """Count an item, which may have a fault. Raises TooManyErrors."""
        if item.fault is None:
            self._tally.rows += 1
            self.budget.consecutive = 0
            return
        image = DecodedImage(item, None, None, None, 0.0, item.fault)
        row = error_answer(image, "", task="ask", model="")
        self._tally.count(row)
        self.budget.check(row, self._tally)

    def check_share(self) -> None:
        """Raise TooManyErrors if the share of faults exceeds the budget."""
        self.budget.check_share(self._tally)
