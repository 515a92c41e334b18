"""The rows of several result files as those of one: a row for each image and prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.sinks.reader import Row, read_results

#: The index of an image, the number of a file, and a row of both.
FileRow = tuple[int, int, Row]


@dataclass
class MergeStats:
    """What a merge found. `conflicts` are keys with different answers, of which one is kept."""

    rows: int = 0
    errors: int = 0
    repeated: int = 0
    replaced: int = 0
    conflicts: int = 0


class MergedRows:
    """A row for each index and prompt, in the order of the index and then of the files.

    The first answer is kept; an error row is replaced by an answer. `stats` are of the last pass.
    One image with its rows is in memory at a time. A pass raises UsageError for files that are not
    of one input.
    """

    def __init__(self, outputs: Sequence[Path]):
        self._outputs = outputs
        self.stats = MergeStats()

    def __iter__(self) -> Iterator[Row]:
        stats = self.stats = MergeStats()
        files = [ordered_rows(number, output) for number, output in enumerate(self._outputs)]
        for _, same in groupby(merge(*files, key=itemgetter(0, 1)), key=itemgetter(0)):
            kept: dict[str, Row] = {}
            first: FileRow | None = None
            for found in same:
                first = first or found
                check_same_image(first, found, self._outputs)
                add_row(kept, found[2], stats)
            for row in kept.values():
                stats.rows += 1
                stats.errors += row["error"] is not None
                yield row


def add_row(kept: dict[str, Row], row: Row, stats: MergeStats) -> None:
    """Keep the row unless an earlier one of its prompt has an answer."""
    before = kept.get(row["prompt"])
    if before is None:
        kept[row["prompt"]] = row
        return
    stats.repeated += 1
    if before["error"] is not None and row["error"] is None:
        kept[row["prompt"]] = row
        stats.replaced += 1
    elif row["error"] is None and content(before) != content(row):
        stats.conflicts += 1


def ordered_rows(number: int, output: Path) -> Iterator[FileRow]:
    """The rows of a file. Raises UsageError where their indices are not in order."""
    last = -1
    for row in read_results(output):
        index = row["index"]
        if not isinstance(index, int) or isinstance(index, bool) or index < last:
            raise UsageError(
                f"{output}: the row of {row['id']!r} is not in the order of its index",
                hint="sort the rows by index first",
            )
        last = index
        yield index, number, row


def check_same_image(one: FileRow, other: FileRow, outputs: Sequence[Path]) -> None:
    """Raise UsageError where two rows of an index are of different images."""
    (index, first, row), (_, second, other_row) = one, other
    if row["id"] != other_row["id"]:
        raise UsageError(
            f"image {index:,} is {row['id']!r} in {outputs[first]}, and {other_row['id']!r} in "
            f"{outputs[second]}",
            hint="merge results of one input; diff compares by id",
        )


def content(row: Row) -> tuple[Any, ...]:
    """What a row says of its image: two rows with equal contents are the same answer."""
    boxes = tuple(
        (box.get("label"), *(box.get(name) for name in ("xmin", "ymin", "xmax", "ymax")))
        if isinstance(box, dict)
        else box
        for box in row["boxes"] or ()
    )
    return row["answer"], row["error"], boxes
