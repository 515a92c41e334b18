"""Counts images that cannot be used or read, and ends a run of too many of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgcli.records import DecodedImage, Fault, Item, error_answer
from pgcli.run.progress.tally import ErrorBudget, Tally

if TYPE_CHECKING:
    from pgcli.training.training_row import RowKey


@dataclass
class ItemErrors:
    """The rows that are read, before their images are; the `budget` is that of the run."""

    budget: ErrorBudget = field(default_factory=lambda: ErrorBudget(max_share=1.0))
    _tally: Tally = field(default_factory=Tally)

    def add(self, item: Item) -> None:
        """Count an item, which may have a fault. Raises TooManyErrors."""
        count_item(item, item.fault, self._tally)
        self.budget.check(self._tally)

    def check_share(self) -> None:
        """Raise TooManyErrors if the share of faults exceeds the budget."""
        self.budget.check_share(self._tally)


@dataclass
class ImageErrors:
    """The images of a run that could not be read: the reasons by the rows' `image_id`.

    An image that is read again in each epoch counts once. The `budget` is that of the answering
    commands; shares are those of the `rows` of an epoch, of which `faults` were lost before.
    """

    rows: int
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    faults: int = 0
    reasons: dict[RowKey, str] = field(default_factory=dict)
    _tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self._tally = Tally(self.faults, errors=Counter({"unknown": self.faults}))

    def add(self, row_id: RowKey, image: DecodedImage) -> None:
        """Count an image that was read or could not be. Raises TooManyErrors."""
        if image.fault is not None and row_id in self.reasons:
            return
        if image.fault is not None:
            self.reasons[row_id] = image.fault.message
        count_item(image.item, image.fault, self._tally)
        self._tally.rows = min(self._tally.rows, self.rows)
        self.budget.check(self._tally)
        if self._tally.rows == self.rows:
            self.budget.check_share(self._tally)


def count_item(item: Item, fault: Fault | None, tally: Tally) -> None:
    """Add an item, with or without a fault, to the tally."""
    if fault is None:
        tally.rows += 1
        tally.last_errors = 0
    else:
        image = DecodedImage(item, None, None, None, 0.0, fault)
        tally.count(error_answer(image, "", task="ask", model=""))
