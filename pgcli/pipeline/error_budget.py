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
class ErrorRuns:
    """The consecutive error rows of a chunk of `rows`: at its start, at its end, and the most."""

    rows: int = 0
    first: int = 0
    last: int = 0
    longest: int = 0

    def add(self, *, is_error: bool) -> None:
        """Count the next row."""
        if is_error and self.first == self.rows:
            self.first += 1
        self.rows += 1
        self.last = self.last + 1 if is_error else 0
        self.longest = max(self.longest, self.last)


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

    def check_chunk(self, error: Answer | None, runs: ErrorRuns, tally: Tally) -> None:
        """Raise TooManyErrors if the rows of a chunk, which is saved, exceed the budget.

        `error` is one of its error rows. Those at its start follow on those at the end of the chunk
        that was checked before.
        """
        before = self.consecutive
        if error is not None:
            self.consecutive = max(runs.longest, before + runs.first) - 1
            self.check(error, tally)
        elif tally.rows >= MIN_ROWS_FOR_SHARE:
            self.check_share(tally)
        self.consecutive = before + runs.rows if runs.first == runs.rows else runs.last

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
