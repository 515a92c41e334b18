"""The number of errors after which a run stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgcli.errors import TooManyErrors

if TYPE_CHECKING:
    from pgcli.run.progress.tally import Tally

#: As many consecutive error rows suggest a broken disk or model rather than broken images.
MAX_CONSECUTIVE_ERRORS = 50
#: The share of errors is checked from this number of rows on, and at the end.
MIN_ROWS_FOR_SHARE = 1000


@dataclass(frozen=True)
class ErrorBudget:
    """At most `max_errors` failed rows, or a `max_share` of all rows.

    Without either, MAX_CONSECUTIVE_ERRORS consecutive failed rows end the run; with
    `stop_on_error`, the first one does.
    """

    max_errors: int | None = None
    max_share: float | None = None
    stop_on_error: bool = False

    def check(self, tally: Tally) -> None:
        """Raise TooManyErrors if the rows so far exceed the budget."""
        errors = tally.errors.total()
        if not errors:
            return
        if self.stop_on_error:
            answered = tally.rows - errors
            raise TooManyErrors(
                f"stopped at the first error, after {answered:,} answered rows: {tally.last_error}",
                hint="repair or remove the image, or continue after errors: <--on-error record>",
            )
        if self.max_errors is not None and errors > self.max_errors:
            raise too_many(f"{errors:,} of {tally.rows:,} rows have errors")
        if tally.rows >= MIN_ROWS_FOR_SHARE:
            self.check_share(tally)
        is_limited = self.max_errors is not None or self.max_share is not None
        if not is_limited and tally.last_errors >= MAX_CONSECUTIVE_ERRORS:
            raise TooManyErrors(
                f"stopped after {MAX_CONSECUTIVE_ERRORS} errors in a row, last {tally.last_error}",
                hint="check the disk, the paths and the model; the same command resumes, and "
                "<--max-errors 100%> allows any number of errors",
            )

    def check_share(self, tally: Tally) -> None:
        """Raise TooManyErrors if the share of errors exceeds the budget."""
        errors = tally.errors.total()
        if self.max_share is not None and errors > self.max_share * tally.rows:
            raise too_many(f"{errors / tally.rows:.1%} of {tally.rows:,} rows have errors")


def too_many(reason: str) -> TooManyErrors:
    return TooManyErrors(
        f"stopped because {reason}, more than <--max-errors=> allows",
        hint="raise <--max-errors=> and run the same command again to resume",
    )
