"""The rows of a run: one per item of the input and prompt, up to the limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, repeat
from typing import TYPE_CHECKING

from pgcli.inputs import Inventory
from pgcli.records import Item
from pgcli.rows import RowSchema
from pgcli.tasks import AnyQuestion, rows_per_image, with_prompts

if TYPE_CHECKING:
    import pyarrow

    from pgcli.run.request import RunRequest

#: Rows of a file in a folder that one command writes, unless `--rows-per-file` says otherwise.
FILE_ROWS = 10_000
#: Workers get about so many ranges, within these sizes. Larger ranges let slow workers end late.
RANGES, MIN_RANGE_ROWS, MAX_RANGE_ROWS = 1024, 64, 1000

#: Items, each with the number of its first row.
Numbered = Iterator[tuple[int, Item]]


@dataclass(frozen=True)
class RunRows:
    """The rows of an input: `per_item` for each item, `total` in all.

    Both are None if rows are unknown before the input is read: for standard input, and for several
    prompts that name columns, because equal prompts of an item are one row.
    """

    inventory: Inventory
    question: AnyQuestion
    limit: int | None = None

    @property
    def per_item(self) -> int | None:
        """The number of rows of each item."""
        return rows_per_image(self.question)

    @property
    def total(self) -> int | None:
        """The number of rows of the output."""
        if not self.is_addressable:
            return None
        rows = (self.inventory.total or 0) * (self.per_item or 0)
        return rows if self.limit is None else min(rows, self.limit)

    @property
    def is_addressable(self) -> bool:
        """Whether rows can be read without the rows before them."""
        return self.inventory.total is not None and self.per_item is not None

    @property
    def images(self) -> int | None:
        """The number of items to read; of all sources if the rows are unknown."""
        if self.total is None or self.per_item is None:
            return self.inventory.total
        return -(-self.total // self.per_item)

    def numbered(self, rows: range, *, images: bool = True) -> Numbered:
        """The items of some rows, each with its first row and the prompts of these rows only.

        Without `images`, tables are read without the bytes of images.
        """
        per_item = self.per_item
        assert per_item is not None
        start, stop = rows.start // per_item, -(-rows.stop // per_item)
        read = self.inventory.items(start, stop, images=images)
        items = with_prompts(read, self.question)
        for first, item in zip(count(start * per_item, per_item), items, strict=False):
            begin, end = max(rows.start, first), min(rows.stop, first + per_item)
            if (begin, end) == (first, first + len(item.prompts)):
                yield first, item
            else:
                yield begin, replace(item, prompts=item.prompts[begin - first : end - first])

    def numbered_ranges(self, ranges: Iterable[range]) -> Numbered:
        """The items of ranges of rows, one range after the other; see `numbered`."""
        for rows in ranges:
            yield from self.numbered(rows)

    def chosen(self, numbers: Sequence[int]) -> Numbered:
        """The items of some rows in order, each with the prompt of its row."""
        if self.per_item is not None:
            for number in numbers:
                yield from self.numbered(range(number, number + 1))
            return
        wanted = set(numbers)
        for first, item in self.stream():
            for number, prompt in enumerate(item.prompts, first):
                if number in wanted:
                    yield number, replace(item, prompts=(prompt,))

    def item_of_each(self, rows: range) -> Iterator[Item]:
        """The item of each row."""
        for _, item in self.numbered(rows):
            yield from repeat(item, len(item.prompts))

    def stream(self) -> Numbered:
        """All items with their prompts and first rows, as they arrive, up to the limit."""
        first = 0
        for item in with_prompts(self.inventory.items(), self.question):
            if self.limit is not None and first + len(item.prompts) >= self.limit:
                if first < self.limit:
                    yield first, replace(item, prompts=item.prompts[: self.limit - first])
                return
            yield first, item
            first += len(item.prompts)

    def kept(self, start: int, stop: int) -> pyarrow.Table | None:
        """The kept columns of some rows in their own types; None if the lines have them."""
        if not self.inventory.kept or not self.is_addressable:
            return None
        per_item = self.per_item or 1
        table = self.inventory.kept_table(start // per_item, -(-stop // per_item))
        if per_item == 1:
            return table
        offset = start // per_item
        return table.take([row // per_item - offset for row in range(start, stop)])


def range_rows(total: int) -> int:
    """The row count of a range for a worker, and of a file in a store."""
    return max(MIN_RANGE_ROWS, min(MAX_RANGE_ROWS, -(-total // RANGES)))


def split_rows(rows: range, size: int) -> Iterator[range]:
    """Split rows at the multiples of a size."""
    start = rows.start
    while start < rows.stop:
        stop = min(rows.stop, (start // size + 1) * size)
        yield range(start, stop)
        start = stop


def row_schema(request: RunRequest, keep: Sequence[str], *, exact: bool) -> RowSchema:
    """The columns of the rows. Raises UsageError if a kept column has a reserved name.

    With `exact`, embeddings in lines are their bytes, for Parquet files.
    """
    question = request.question
    return RowSchema(
        timing=not request.output.no_timing,
        base=question.columns,
        float16=question.float16,
        keep=tuple(keep),
        exact=exact,
    )
