"""The number of error rows after which a run stops."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.errors import TooManyErrors
from pgcli.pipeline.tally import Tally
from pgcli.records import Answer

#: As many consecutive error rows suggest a broken disk or model rather than broken images.
MAX_CONSECUTIVE_ERRORS = 50
#: The share of errors is checked from this number of rows on, and at the end.
MIN_ROWS_FOR_SHARE = 1000


@dataclass
class ErrorBudget:
    """At most `max_errors` error rows, or a `max_share` of all rows.

    Without either, MAX_CONSECUTIVE_ERRORS consecutive ones end the run; with `stop_on_error` the
    first one does.
    """

    max_errors: int | None = None
    max_share: float | None = None
    stop_on_error: bool = False
    consecutive: int = 0

    def check(self, row: Answer, tally: Tally) -> None:
        """Raise TooManyErrors if this row, which is saved, exceeds the budget."""
        if tally.rows >= MIN_ROWS_FOR_SHARE:
            self.check_share(tally)
        if row.error is None:
            self.consecutive = 0
            return
        self.consecutive += 1
        if self.stop_on_error:
            raise TooManyErrors(
                f"stopped at the first error, after {tally.rows - 1} answered rows: "
                f"{describe(row)}",
                hint="repair or remove the image, or continue after errors: --on-error record",
            )
        errors = tally.errors.total()
        if self.max_errors is not None and errors > self.max_errors:
            raise too_many(f"{errors:,} of {tally.rows:,} rows have errors")
        is_limited = self.max_errors is not None or self.max_share is not None
        if not is_limited and self.consecutive >= MAX_CONSECUTIVE_ERRORS:
            raise TooManyErrors(
                f"stopped after {MAX_CONSECUTIVE_ERRORS} errors in a row, the last one "
                f"{describe(row)}",
                hint="check the disk, the paths and the model; the same command resumes, and "
                "--max-errors 100% allows any number of errors",
            )

    def check_chunk(self, error: Answer | None, error_run: int, tally: Tally) -> None:
        """Raise TooManyErrors if the rows of a chunk, which is saved, exceed the budget.

        `error` is one of its error rows, and `error_run` the most consecutive ones.
        """
        if error is not None:
            self.consecutive = error_run - 1
            self.check(error, tally)
        elif tally.rows >= MIN_ROWS_FOR_SHARE:
            self.check_share(tally)

    def check_share(self, tally: Tally) -> None:
        """Raise TooManyErrors if the share of errors exceeds the budget."""
        errors = tally.errors.total()
        if self.max_share is not None and errors > self.max_share * tally.rows:
            raise too_many(f"{errors / tally.rows:.1%} of {tally.rows:,} rows have errors")


def too_many(reason: str) -> TooManyErrors:
    return TooManyErrors(
        f"stopped because {reason}, more than --max-errors allows",
        hint="the same command resumes; a larger --max-errors continues further",
    )


def describe(row: Answer) -> str:
    return f"{row.id}: {row.error}: {row.error_message}"
