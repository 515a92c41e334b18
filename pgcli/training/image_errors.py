"""Counts images that cannot be read, and ends a run of too many of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgcli.pipeline.error_budget import ErrorBudget
from pgcli.pipeline.tally import Tally
from pgcli.records import DecodedImage, error_answer, unanswered


@dataclass
class ImageErrors:
    """The images of a run that could not be read: by their ids, the reasons.

    An image that is read again in each epoch counts once. The `budget` is that of the answering
    commands; shares are those of the `rows` of an epoch.
    """

    rows: int
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    reasons: dict[str, str] = field(default_factory=dict)
    _tally: Tally = field(default_factory=Tally)

    def add(self, image: DecodedImage) -> None:
        """Count an image that was read or could not be. Raises TooManyErrors."""
        if image.fault is not None and image.item.id in self.reasons:
            return
        row_of = unanswered if image.fault is None else error_answer
        row = row_of(image, "", task="ask", model="")
        if self._tally.rows < self.rows:
            self._tally.rows += 1
        if image.fault is not None:
            self.reasons[image.item.id] = image.fault.message
            self._tally.errors[image.fault.code] += 1
        self.budget.check(row, self._tally)
        if self._tally.rows == self.rows:
            self.budget.check_share(self._tally)
