"""The rows of several result files in one order, so that rows of an image follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pgcli.box_filter import NO_FILTER, BoxFilter
from pgcli.output.reader import Row, read_results
from pgcli.results.images import image_index, image_key, saved_record


class FileRow(NamedTuple):
    """A row and the number of its file. `input` is equal for files whose runs had one input."""

    row: Row
    file: int
    input: int

    @property
    def image(self) -> tuple[object, ...]:
        """What consecutive rows of the same image have in common."""
        return (self.input, *image_key(self.row))


class SeveralFiles:
    """The rows of the files by the index, id and path of their images, without reading them whole.

    Their boxes are those that `box_filter` keeps. A later pass has no rows that a run which goes on
    added since the first. With `exact`, kept columns of Parquet files have cells.
    """

    def __init__(
        self, outputs: Sequence[Path], box_filter: BoxFilter = NO_FILTER, *, exact: bool = False
    ):
        self.outputs = outputs
        self._box_filter, self._exact = box_filter, exact
        self._counts: list[int | None] = [None] * len(outputs)
        inputs = [input_of(output) for output in outputs]
        self._inputs = [inputs.index(one) for one in inputs]

    def __iter__(self) -> Iterator[FileRow]:
        files = [self._rows(number) for number in range(len(self.outputs))]
        return files[0] if len(files) == 1 else merge(*files, key=image_order)

    def _rows(self, number: int) -> Iterator[FileRow]:
        count = 0
        rows = read_results(self.outputs[number], exact=self._exact)
        for row in islice(rows, self._counts[number]):
            count += 1
            yield FileRow(self._box_filter.row(row), number, self._inputs[number])
        self._counts[number] = count


def image_order(found: FileRow) -> tuple[int, str, str, int]:
    """The key by which files are merged; rows of one file have ascending indices."""
    row = found.row
    return image_index(row), str(row["id"]), str(row["image"]), found.input


def input_of(output: Path) -> tuple[object, object]:
    """The folder and the sources of the run that made the output, as far as it is known."""
    record = saved_record(output)
    values = {} if record is None else record.input
    return values.get("folder"), values.get("sources")
