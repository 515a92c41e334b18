"""Counts rows that cannot be used, and ends a run of too many of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgcli.records import Fault, Item
from pgcli.run.progress.tally import ErrorBudget, Tally
from pgcli.training.rows import RowKey


@dataclass
class RowErrors:
    """The rows of a pass that cannot be used: the reasons by their keys.

    A row that is read again in each epoch counts once. Shares are those of the `rows` of an epoch,
    of which `faults` were lost before their images were read; while rows are read it is not known.
    """

    budget: ErrorBudget = field(default_factory=ErrorBudget)
    rows: int | None = None
    faults: int = 0
    reasons: dict[RowKey, str] = field(default_factory=dict)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.faults)
        self.tally.errors["unknown"] = self.faults

    def add(self, key: RowKey, item: Item, fault: Fault | None) -> None:
        """Count a row, which may have a fault. Raises TooManyErrors."""
        tally = self.tally
        if fault is None:
            tally.last_errors = 0
        elif key in self.reasons:
            return
        else:
            self.reasons[key] = fault.message
            tally.errors[fault.code] += 1
            tally.last_error = f"{item.id}: {fault.code}: {fault.message}"
            tally.last_errors += 1
            tally.most_errors = max(tally.most_errors, tally.last_errors)
        tally.rows = tally.rows + 1 if self.rows is None else min(tally.rows + 1, self.rows)
        self.budget.check(tally)
        if tally.rows == self.rows:
            self.budget.check_share(tally)
