"""Compares the rows of an output with the input that they were made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.reopen_input import reopen_items, url_reader_of
from pgcli.records import Item
from pgcli.sinks.reader import IndexedRow
from pgcli.state.input_check import is_row_of
from pgcli.state.run_record import RunRecord

MAX_DIFFERENCES_SHOWN = 10


@dataclass
class RowComparison:
    """The number of rows compared, of those with errors, and the differences that were found."""

    rows: int = 0
    errors: int = 0
    missing: int = 0
    surplus: int = 0
    differences: int = 0
    first_differences: list[str] = field(default_factory=list)

    def add(self, difference: str, *, missing: bool = False, surplus: bool = False) -> None:
        self.differences += 1
        self.missing += missing
        self.surplus += surplus
        if len(self.first_differences) < MAX_DIFFERENCES_SHOWN:
            self.first_differences.append(difference)

    @property
    def remedy(self) -> str:
        """How to fix the output; rows that are only missing or only surplus have other remedies."""
        if self.missing == self.differences:
            return "the same command adds the missing rows"
        if self.surplus == self.differences:
            return (
                "the input has fewer rows than before: restore it; or use --overwrite to write "
                "the output again from the present input"
            )
        return "--overwrite writes it again; another -o leaves it unchanged"


def compare(
    rows: Iterable[IndexedRow],
    expected: Iterator[tuple[Item, str]] | None,
    comparison: RowComparison,
) -> None:
    """Add the differences to the comparison.

    Without `expected`, for a run that read standard input, only the order of the rows is checked.
    """
    last_index = -1
    numbered = enumerate(expected) if expected is not None else None
    for position, row in rows:
        if row is None:
            comparison.add(f"row {position + 1:,} is cut or damaged")
            continue
        comparison.rows += 1
        comparison.errors += row.get("error") is not None
        if not isinstance(row.get("index"), int) or row["index"] < last_index:
            comparison.add(f"row {position + 1:,} is out of order")
        last_index = row["index"] if isinstance(row.get("index"), int) else last_index
        if numbered is not None:
            compare_row(position, row, numbered, comparison)
    for position, (item, _) in numbered or ():
        comparison.add(f"row {position + 1:,} is missing: {item.id!r}", missing=True)


def compare_row(
    position: int,
    row: Mapping[str, Any],
    expected: Iterator[tuple[int, tuple[Item, str]]],
    comparison: RowComparison,
) -> None:
    """Compare a row with the item and prompt at its position; add those missing before it."""
    for number, (item, prompt) in expected:
        if number < position:
            comparison.add(f"row {number + 1:,} is missing: {item.id!r}", missing=True)
            continue
        if not is_row_of(row, item, prompt):
            comparison.add(
                f"row {position + 1:,} is of {row.get('id')!r}, but the input has {item.id!r}"
            )
        return
    comparison.add(
        f"row {position + 1:,} is of nothing in the input: {row.get('id')!r}", surplus=True
    )


def expected_rows(output: Path, record: RunRecord) -> Iterator[tuple[Item, str]] | None:
    """The item and prompt of every row of a run; None if it read standard input."""
    items = reopen_items(output, record, url_reader_of(record))
    return None if items is None else ((item, one) for item in items for one in item.prompts)
