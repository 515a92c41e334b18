"""Counts and times of a run, and the number of errors after which it stops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgcli.errors import TooManyErrors
from pgcli.records import Answer

#: As many consecutive error rows suggest a broken disk or model rather than broken images.
MAX_CONSECUTIVE_ERRORS = 50
#: The share of errors is checked from this number of rows on, and at the end.
MIN_ROWS_FOR_SHARE = 1000


@dataclass
class Tally:
    """What a run has computed so far.

    `rows_before` were saved when it began, with `errors_before` by their codes. `waited_seconds` is
    the time for which the model waited for images; `seconds` are those of answering. `truncated`
    are the rows with a text that is longer than the model's input.
    """

    rows: int = 0
    rows_before: int = 0
    images: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    errors_before: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    truncated: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    last_errors: int = 0  # the error rows since the last answered one
    last_error: str = ""  # described

    def count(self, row: Answer) -> None:
        """Add a row that was computed and saved."""
        if row.error is None:
            self.last_errors = 0
        else:
            self.errors[row.error] += 1
            self.last_error = f"{row.id}: {row.error}: {row.error_message}"
            self.last_errors += 1
        self.rows += 1
        self.tokens += row.tokens or 0
        self.truncated += bool(row.truncated)
        self.vision_ms += row.vision_ms or 0.0
        self.prefill_ms += row.prefill_ms or 0.0
        self.decode_ms += row.decode_ms or 0.0

    def add(self, later: Tally) -> None:
        """Add rows that another process has counted."""
        has_answers = later.errors.total() < later.rows
        self.last_errors = later.last_errors + (0 if has_answers else self.last_errors)
        self.errors.update(later.errors)
        self.last_error = later.last_error or self.last_error
        for name in ("rows", "images", "tokens", "truncated", "waited_seconds", *STAGES):
            setattr(self, name, getattr(self, name) + getattr(later, name))

    @property
    def all_errors(self) -> Counter[str]:
        """The error rows of the output, by their codes."""
        return self.errors + self.errors_before


STAGES = ("vision_ms", "prefill_ms", "decode_ms")


@dataclass(frozen=True)
class ErrorBudget:
    """At most `max_errors` error rows, or a `max_share` of all rows.

    Without either, MAX_CONSECUTIVE_ERRORS consecutive ones end the run; with `stop_on_error` the
    first one does.
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
                hint="repair or remove the image, or continue after errors: --on-error record",
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
                "--max-errors 100% allows any number of errors",
            )

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
