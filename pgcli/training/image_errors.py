"""Counts images that cannot be used or read, and ends a run of too many of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgcli.pipeline.error_budget import ErrorBudget
from pgcli.pipeline.tally import Tally
from pgcli.records import DecodedImage, Item, error_answer, unanswered

if TYPE_CHECKING:
    from pgcli.training.training_row import RowKey


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
        row_of = unanswered if image.fault is None else error_answer
        row = row_of(image, "", task="ask", model="")
        if self._tally.rows < self.rows:
            self._tally.rows += 1
        if image.fault is not None:
            self.reasons[row_id] = image.fault.message
            self._tally.errors[image.fault.code] += 1
        self.budget.check(row, self._tally)
        if self._tally.rows == self.rows:
            self.budget.check_share(self._tally)
