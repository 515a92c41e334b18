"""Counts images that cannot be read, and ends a run of too many of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgcli.pipeline.error_budget import ErrorBudget
from pgcli.pipeline.tally import Tally
from pgcli.records import DecodedImage, error_answer, unanswered
from pgcli.training.rows import RowKey


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
