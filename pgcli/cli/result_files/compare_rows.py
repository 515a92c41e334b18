"""Compares the rows of an output with the input that they were made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgcli.records import Item
from pgcli.regions import split_locations
from pgcli.rows import prompt_of
from pgcli.sinks.reader import IndexedRow
from pgcli.state.input_check import RowComparer, quoted
from pgcli.state.row_input import RowInput
from pgcli.state.saved_inputs import SavedInputs

MAX_DIFFERENCES_SHOWN = 10
MAX_MISSING = 1000  # images that are counted one by one


@dataclass
class RowComparison:
    """The number of rows compared, of those with errors, and the differences that were found.

    `without_record` rows have no record of their input, and are compared by what they show.
    """

    rows: int = 0
    errors: int = 0
    missing: int = 0
    surplus: int = 0
    without_record: int = 0
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


class InputComparison:
    """Compares rows with the items and prompts of a run, which `expected` yields in order."""

    def __init__(
        self, expected: Iterator[tuple[Item, str]], inputs: SavedInputs, comparer: RowComparer
    ):
        self._expected = enumerate(expected)
        self._inputs, self._comparer = inputs, comparer

    def compare(self, position: int, row: Mapping[str, Any], comparison: RowComparison) -> None:
        """Compare a row with the item and prompt at its position; add those missing before it."""
        for number, (item, prompt) in self._expected:
            if number < position:
                comparison.add(f"row {number + 1:,} is missing: {item.id!r}", missing=True)
                continue
            if change := self._change(position, row, item, prompt, comparison):
                comparison.add(f"row {position + 1:,} {change}")
            return
        comparison.add(
            f"row {position + 1:,} is of nothing in the input: {row.get('id')!r}", surplus=True
        )

    def finish(self, comparison: RowComparison) -> None:
        """Add the items that have no row."""
        for position, (item, _) in self._expected:
            comparison.add(f"row {position + 1:,} is missing: {item.id!r}", missing=True)

    def _change(
        self,
        position: int,
        row: Mapping[str, Any],
        item: Item,
        prompt: str,
        comparison: RowComparison,
    ) -> str:
        """How the input differs from the row and from the record of its input."""
        if change := self._comparer.differs_from_row(row, item, prompt):
            return change
        record = self._inputs.read(position)
        if record is None:
            comparison.without_record += 1
            return ""
        return self._comparer.differs(record, RowInput.of(item, prompt), item)


def compare(
    rows: Iterable[IndexedRow], expected: InputComparison | OrderComparison, found: RowComparison
) -> None:
    """Add the differences to the comparison."""
    last_index = -1
    for position, row in rows:
        if row is None:
            found.add(f"row {position + 1:,} is cut or damaged")
            continue
        found.rows += 1
        found.errors += row.get("error") is not None
        if not isinstance(row.get("index"), int) or row["index"] < last_index:
            found.add(f"row {position + 1:,} is out of order")
        last_index = row["index"] if isinstance(row.get("index"), int) else last_index
        expected.compare(position, row, found)
    expected.finish(found)


class OrderComparison:
    """Compares rows with each other where their input was standard input.

    Every image has rows, and none is there twice; those of each have the `prompts`, if these are
    known. `saved` rows were there when the run last stored its progress.
    """

    def __init__(self, prompts: Sequence[str], saved: int):
        self._prompts, self._saved = prompts, saved
        self._index = -1
        self._seen: list[str] = []  # prompts of the rows of this image

    def compare(self, position: int, row: Mapping[str, Any], comparison: RowComparison) -> None:
        """Compare a row with those before it."""
        index, prompt = row.get("index"), str(prompt_of(row))
        if index != self._index:
            self._end_image(comparison)
            if isinstance(index, int):
                for missing in range(self._index + 1, min(index, self._index + 1 + MAX_MISSING)):
                    comparison.add(f"image {missing + 1:,} has no row", missing=True)
                self._index = index
        if prompt in self._seen:
            comparison.add(f"row {position + 1:,} is there twice: {row.get('id')!r}")
        elif not self._is_asked(prompt):
            comparison.add(f"row {position + 1:,} has the prompt {quoted(prompt)}")
        else:
            self._seen.append(prompt)

    def finish(self, comparison: RowComparison) -> None:
        """Add the prompts of the last image and the rows at the end that are missing."""
        self._end_image(comparison)
        if comparison.rows < self._saved and not comparison.differences:
            comparison.add(
                f"the run saved {self._saved:,} rows, and {comparison.rows:,} are left",
                missing=True,
            )

    def _end_image(self, comparison: RowComparison) -> None:
        if self._seen and len(self._seen) < len(self._prompts):
            comparison.add(f"a row of image {self._index + 1:,} is missing", missing=True)
        self._seen = []

    def _is_asked(self, prompt: str) -> bool:
        """Whether the prompt, which a region may follow, is one of the run's."""
        asked, _ = split_locations(prompt)
        return not self._prompts or prompt in self._prompts or asked in self._prompts
