"""How many rows of a Parquet row group may be read at once, from the headers of its pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, BinaryIO

from pgcli.sources.readers.parquet_cells import BROKEN, dictionary_values
from pgcli.sources.readers.parquet_pages import Page, is_data, read_pages

#: Of one column's values in memory. A dictionary can store one value of many megabytes once and
#: repeat it in millions of rows; a page of nothing but zeros packs to a thousandth.
MAX_BATCH_BYTES = 64 * 2**20
#: A page is unpacked as a whole, and so is a row of lists.
MAX_PAGE_BYTES = 256 * 2**20
MAX_DICTIONARY_VALUES = 2**20
BATCH_SIZES = (4096, 1024, 256, 64, 16, 4, 1)


class TooLarge(ValueError):
    """A column cannot be read within bounded memory."""


def batch_rows(file: BinaryIO, leaves: Iterable[Any], group: Any) -> int:
    """The rows of a row group that fit into memory at once. Raises TooLarge and ValueError.

    `leaves` are columns of the Parquet schema with their numbers, `group` has their metadata.
    """
    rows = BATCH_SIZES[0]
    for number, leaf in leaves:
        column = group.column(number)
        pages = list(read_pages(file, column))
        check_sizes(pages, leaf)
        value = longest_value(file, pages, column.compression)
        if leaf.max_repetition_level:
            rows = min(rows, list_rows(pages, column, value, leaf))
            continue
        width = max(value, leaf.length or 8)
        rows = min(rows, max(1, MAX_BATCH_BYTES // width), window(pages))
    return max(size for size in BATCH_SIZES if size <= rows)


def check_sizes(pages: Iterable[Page], leaf: Any) -> None:
    """Raise TooLarge for a page that takes too much memory to unpack."""
    for page in pages:
        is_long = page.kind == "dictionary" and page.values > MAX_DICTIONARY_VALUES
        if page.size + page.unpacked > MAX_PAGE_BYTES or is_long:
            raise TooLarge(
                f"a page of the column {leaf.path!r} has {page.values:,} values and takes "
                f"{page.unpacked:,} bytes of memory, which is too much to read"
            )


def longest_value(file: BinaryIO, pages: Sequence[Page], codec: str) -> int:
    """The bytes of the longest value that a row group's dictionary may repeat."""
    page = next((page for page in pages if page.kind == "dictionary"), None)
    if page is None or page.unpacked <= MAX_BATCH_BYTES // BATCH_SIZES[0]:
        return 1 if page is None else page.unpacked
    try:
        return max(map(len, dictionary_values(file, page, codec)), default=1)
    except BROKEN:
        return page.unpacked


def list_rows(pages: Sequence[Page], column: Any, value: int, leaf: Any) -> int:
    """The rows of a column of lists; its pages do not say where a row begins."""
    data = [page for page in pages if is_data(page)]
    size = max(sum(page.unpacked for page in data), column.num_values * value)
    if sum(page.unpacked for page in data) > MAX_PAGE_BYTES:
        raise TooLarge(f"the lists of the column {leaf.path!r} take too much memory to read")
    return BATCH_SIZES[0] if size <= MAX_PAGE_BYTES else BATCH_SIZES[4]


def window(pages: Iterable[Page]) -> int:
    """The rows of which no selection in sequence takes more than MAX_BATCH_BYTES of pages."""
    data = [page for page in pages if is_data(page)]
    starts = [page.first for page in data]
    sizes = [0, *accumulate(page.unpacked for page in data)]
    for rows in BATCH_SIZES:
        ends = (
            bisect_left(starts, start + page.values + rows)
            for start, page in zip(starts, data, strict=True)
        )
        if all(sizes[end] - sizes[n] <= MAX_BATCH_BYTES for n, end in enumerate(ends)):
            return rows
    return 1
