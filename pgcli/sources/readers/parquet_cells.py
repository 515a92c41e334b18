"""The cells of a binary Parquet column: those of some rows only, one page in memory at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from pgcli.records import NOT_READ, Fault
from pgcli.sources.readers.parquet_levels import runs
from pgcli.sources.readers.parquet_pages import (
    DICTIONARY_ENCODINGS,
    PLAIN,
    RLE,
    Page,
    is_data,
    read_fully,
)

#: A page is unpacked as a whole. One that takes more memory than this is not read; by default
#: pandas and pyarrow write the first 1,024 images of a row group as one page.
MAX_PAGE_BYTES = 576 * 2**20
MAX_PAGE_MEMORY = 704 * 2**20
#: The largest page of indices into a dictionary, which is in memory at the same time.
MAX_INDEX_BYTES = 32 * 2**20
MAX_DICTIONARY_VALUES = 2**22
MAX_CELL_BYTES = 64 * 2**20

#: The codecs that unpack a page at once, by their names in Parquet.
CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli"}
CODECS |= {"LZ4": "lz4_raw"}  # as pyarrow calls it

Cell = bytes | Fault | None
View = memoryview | Fault | None
LARGE_CELL = Fault("too_large", f"The image in the table exceeds {MAX_CELL_BYTES >> 20} MiB.")
LARGE_PAGE = Fault(
    "too_large",
    f"The page of the Parquet file that holds the image exceeds {MAX_PAGE_BYTES >> 20} MiB; "
    "smaller row groups make smaller pages.",
)
DAMAGED = Fault("decode_failed", "The page of the Parquet file that holds the image is damaged.")

#: What is raised for pages whose content is not as their headers say.
BROKEN = (ValueError, IndexError, OverflowError, OSError, pa.ArrowException)


class UnpackedPage(NamedTuple):
    """The definition levels of a page's values, and the values that are not null."""

    levels: memoryview
    values: memoryview


class CellReader:
    """Reads the cells of a column chunk, whose `pages` are known.

    A value that is not null has the definition level `max_level`.
    """

    def __init__(self, file: BinaryIO, pages: Sequence[Page], codec: str, max_level: int):
        self._file, self._pages, self._max_level = file, pages, max_level
        self._codec = pa.Codec(CODECS[codec]) if codec in CODECS else None
        self._dictionary: tuple[memoryview, array[int]] | None = None

    def cells(
        self, start: int, stop: int, is_wanted: Callable[[int], bool] = lambda row: True
    ) -> Iterator[Cell]:
        """The cells of the rows from `start` to before `stop`; NOT_READ for one that is not wanted.

        A page is read once, and not if none of its rows is wanted. Rows of a page that is too large
        or damaged are faults.
        """
        for page in self._pages:
            first, last = max(start, page.first), min(stop, page.first + page.values)
            if not is_data(page) or first >= last:
                continue
            if not any(map(is_wanted, range(first, last))):
                yield from repeat(NOT_READ, last - first)
                continue
            done = 0
            try:
                for row, cell in enumerate(self._page_cells(page, first, last), first):
                    yield copy(cell) if is_wanted(row) else NOT_READ
                    done += 1
            except BROKEN:
                yield from repeat(DAMAGED, last - first - done)

    def _page_cells(self, page: Page, first: int, last: int) -> Iterator[View]:
        """The cells of some rows of a page; images are views of its memory."""
        is_plain = page.encoding == PLAIN
        if is_plain:
            self._dictionary = None  # it is never in memory together with a large page
        if is_too_large(page, MAX_PAGE_BYTES if is_plain else MAX_INDEX_BYTES):
            yield from repeat(LARGE_PAGE, last - first)
            return
        dictionary = None if is_plain else self._read_dictionary()
        if not is_plain and dictionary is None:
            yield from repeat(LARGE_PAGE, last - first)
            return
        unpacked = self.unpack(page)
        if dictionary is None:
            data, places = unpacked.values, plain_places(unpacked.values)
        else:
            data, places = dictionary[0], indexed_places(unpacked.values, dictionary[1])
        presence = self._presence(unpacked.levels, last - page.first)
        for row, is_present in enumerate(presence, page.first):
            place = next(places) if is_present else None
            if row >= first:
                yield None if place is None else data[place[0] : place[1]]

    def _presence(self, levels: memoryview, rows: int) -> Iterator[bool]:
        """Whether each of the first rows of a page has a value."""
        if self._max_level == 0:
            yield from repeat(True, rows)
            return
        for level, count in runs(levels, self._max_level.bit_length()):
            yield from repeat(level == self._max_level, min(count, rows))
            rows -= count
            if rows <= 0:
                return
        raise ValueError("the page has too few definition levels")

    def unpack(self, page: Page) -> UnpackedPage:
        """The content of a page. Raises one of BROKEN."""
        self._file.seek(page.offset)
        packed = memoryview(read_fully(self._file, page.size))
        if page.kind == "data 2":  # its levels are in front, and never packed
            skipped, size = page.header.get(6, 0), page.header.get(5, 0)
            levels, packed = packed[skipped : skipped + size], packed[skipped + size :]
            is_packed = page.header.get(7, True)
            values = self._unpacked(packed, page.unpacked - skipped - size) if is_packed else packed
            return UnpackedPage(levels, values)
        values = self._unpacked(packed, page.unpacked)
        if self._max_level == 0 or page.kind == "dictionary":
            return UnpackedPage(values[:0], values)
        if page.header.get(3) != RLE:
            raise ValueError("the page has definition levels of an unknown encoding")
        end = 4 + int.from_bytes(values[:4], "little")
        return UnpackedPage(values[4:end], values[end:])

    def _unpacked(self, packed: memoryview, size: int) -> memoryview:
        if self._codec is None or size == 0:
            return packed[:size]
        unpacked = self._codec.decompress(packed, decompressed_size=size)
        return memoryview(unpacked).cast("B")

    def _read_dictionary(self) -> tuple[memoryview, array[int]] | None:
        """The values of the dictionary, and where each begins; None if it is too large."""
        if self._dictionary is None:
            page = next((page for page in self._pages if page.kind == "dictionary"), None)
            if page is None:
                raise ValueError("the column has no dictionary")
            if is_too_large(page, MAX_PAGE_BYTES) or page.values > MAX_DICTIONARY_VALUES:
                return None
            data = self.unpack(page).values
            starts = (start for start, _ in plain_places(data))
            self._dictionary = data, array("Q", chain(starts, [len(data) + 4]))
        return self._dictionary


def can_read(pages: Sequence[Page], codec: str) -> bool:
    """Whether `CellReader` reads such pages."""
    encodings = {page.encoding for page in pages if is_data(page)}
    is_known = codec in CODECS or codec == "UNCOMPRESSED"
    return is_known and encodings <= {PLAIN, *DICTIONARY_ENCODINGS}


def dictionary_values(file: BinaryIO, page: Page, codec: str) -> Iterator[range]:
    """Where each value of a dictionary is in its page."""
    values = CellReader(file, [page], codec, 0).unpack(page).values
    return (range(start, end) for start, end in plain_places(values))


def is_too_large(page: Page, limit: int) -> bool:
    """Whether a page takes more memory than pages may."""
    return page.unpacked > limit or page.size + page.unpacked > MAX_PAGE_MEMORY


def plain_places(data: memoryview) -> Iterator[tuple[int, int]]:
    """The start and the end of each value; four bytes in front of a value are its length."""
    start = 0
    while start + 4 <= len(data):
        start += 4
        end = start + int.from_bytes(data[start - 4 : start], "little")
        if end > len(data):
            raise ValueError("a value is longer than its page")
        yield start, end
        start = end


def indexed_places(data: memoryview, starts: array[int]) -> Iterator[tuple[int, int]]:
    """The start and the end of each value, of indices into a dictionary."""
    for index, count in runs(data[1:], data[0]):
        yield from repeat((starts[index], starts[index + 1] - 4), count)


def copy(cell: View) -> Cell:
    """The cell with a copy of its bytes."""
    if not isinstance(cell, memoryview):
        return cell
    return LARGE_CELL if len(cell) > MAX_CELL_BYTES else bytes(cell)
