"""How many error rows a run bears before it stops."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.errors import TooManyErrors
from pgcli.pipeline.tally import Tally
from pgcli.records import Answer

#: So many error rows one after the other are a broken disk or model, not broken pictures.
IN_A_ROW = 50
#: A share of errors counts from so many rows on, or at the end.
ROWS_BEFORE_SHARE = 1000


@dataclass
class ErrorBudget:
    """The bounds of one run. `most` error rows and no more, or a `share` of all rows.

    Where neither is given IN_A_ROW after one another end the run. With `none` the first one does.
    """

    most: int | None = None
    share: float | None = None
    none: bool = False
    in_a_row: int = 0

    def check(self, row: Answer, tally: Tally) -> None:
        """Raise TooManyErrors if this row, which is saved, was one error too many."""
        if tally.rows >= ROWS_BEFORE_SHARE:
            self.check_share(tally)
        if row.error is None:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.none:
            raise TooManyErrors(
                f"stopped at the first error, after {tally.rows - 1} answered rows: {told(row)}",
                hint="mend or leave out the picture, or go on past it: --on-error record",
            )
        errors = tally.errors.total()
        if self.most is not None and errors > self.most:
            raise too_many(f"{errors:,} of {tally.rows:,} rows have errors")
        if self.most is self.share is None and self.in_a_row >= IN_A_ROW:
            raise TooManyErrors(
                f"stopped after {IN_A_ROW} errors in a row, the last one {told(row)}",
                hint="see that the disk, the paths and the model are well; the same command goes "
                "on, and with --max-errors 100% past any number of errors",
            )

    def check_share(self, tally: Tally) -> None:
        """Raise TooManyErrors where the share of errors is above the bound."""
        errors = tally.errors.total()
        if self.share is not None and errors > self.share * tally.rows:
            raise too_many(f"{errors / tally.rows:.1%} of {tally.rows:,} rows have errors")


def too_many(what: str) -> TooManyErrors:
    return TooManyErrors(
        f"stopped as {what}, more than --max-errors allows",
        hint="the same command goes on from there; a larger --max-errors goes further",
    )


def told(row: Answer) -> str:
    return f"{row.id}: {row.error}: {row.error_message}"
