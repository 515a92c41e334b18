"""check: every row of an output read again, and compared with the input it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.reopen_input import reopen_items, url_reader_of
from pgcli.cli.ui import stdout
from pgcli.errors import Difference, UsageError
from pgcli.records import Item
from pgcli.sinks.reader import Placed, placed_rows
from pgcli.state.input_check import is_row_of
from pgcli.state.run_state import record_in, why_unknown
from pgcli.state.state_folder import state_folder

MAX_DIFFERENCES_SHOWN = 10  # differences that are told one by one


@dataclass
class CheckResult:
    """What a check found: rows, those with errors, and what is wrong."""

    rows: int = 0
    errors: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: int = 0
    surplus: int = 0
    count: int = 0

    def add(self, what: str, *, missing: bool = False, surplus: bool = False) -> None:
        self.count += 1
        self.missing += missing
        self.surplus += surplus
        self.wrong += [what] if len(self.wrong) < MAX_DIFFERENCES_SHOWN else []

    @property
    def remedy(self) -> str:
        """What to do about it: another thing where rows are only missing, or only too many."""
        if self.missing == self.count:
            return "the same command makes the rows that are missing"
        if self.surplus == self.count:
            return (
                "the input has fewer rows than it had: bring back what it had, and all is well; "
                "or --overwrite makes the output anew from what there is"
            )
        return "--overwrite makes it anew; another -o leaves it alone"


def check(output: str) -> None:
    """Read all rows of an output and compare them with its input; raises Difference where they
    are not its rows, one each and in order, and UsageError where no run is known.
    """
    path = Path(output)
    record = record_in(state_folder(path))
    if record is None:
        raise UsageError(
            f"no run is known of {output}, so there is no input to compare it with: "
            f"{why_unknown(state_folder(path))}",
            hint="name an output as it was given to -o",
        )
    found = CheckResult()
    try:
        compare(placed_rows(path), expected_rows(path, record), found)
    except (OSError, ValueError) as problem:
        found.add(f"{output} cannot be read: {problem}")
    for line in found.wrong:
        stdout.print_line(line)
    if found.count:
        more = (
            f", {found.count - MAX_DIFFERENCES_SHOWN:,} of them not told"
            if found.count > MAX_DIFFERENCES_SHOWN
            else ""
        )
        raise Difference(
            f"{found.count:,} difference{'s' * (found.count != 1)} between {output} and its "
            f"input{more}",
            hint=found.remedy,
        )
    errors = f", {found.errors:,} of them with errors" if found.errors else ""
    stdout.print_line(f"{found.rows:,} rows are those of the input, in order{errors}")


def compare(
    rows: Iterator[Placed], wanted: Iterator[tuple[Item, str]] | None, found: CheckResult
) -> None:
    """Note what differs. Without an input, which standard input was, only the rows' order shows."""
    last = -1
    places = enumerate(wanted) if wanted is not None else None
    for place, row in rows:
        if row is None:
            found.add(f"row {place + 1:,} is cut or damaged")
            continue
        found.rows += 1
        found.errors += row.get("error") is not None
        if not isinstance(row.get("index"), int) or row["index"] < last:
            found.add(f"row {place + 1:,} is out of order")
        last = row["index"] if isinstance(row.get("index"), int) else last
        if places is not None:
            compare_row(place, row, places, found)
    for place, (item, _) in places or ():
        found.add(f"row {place + 1:,} is missing: {item.id!r}", missing=True)


def compare_row(
    place: int,
    row: Mapping[str, Any],
    places: Iterator[tuple[int, tuple[Item, str]]],
    found: CheckResult,
) -> None:
    """Compare a row with what the input has at its place; note those missing before it."""
    for number, (item, prompt) in places:
        if number < place:
            found.add(f"row {number + 1:,} is missing: {item.id!r}", missing=True)
            continue
        if not is_row_of(row, item, prompt):
            found.add(f"row {place + 1:,} is of {row.get('id')!r}, and the input has {item.id!r}")
        return
    found.add(f"row {place + 1:,} is of nothing in the input: {row.get('id')!r}", surplus=True)


def expected_rows(output: Path, record: Mapping[str, Any]) -> Iterator[tuple[Item, str]] | None:
    """The items and prompts that a run's rows are to be of; None where they came on a pipe."""
    items = reopen_items(output, record, url_reader_of(record))
    return None if items is None else ((item, one) for item in items for one in item.prompts)
