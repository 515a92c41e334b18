"""The pages of a Parquet column, found by their headers before anything is unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NamedTuple

from pgcli.sources.readers.thrift import CompactReader, Truncated

#: Headers take some tens of bytes, and more with statistics.
HEADER_BYTES = (512, 2**16, 2**22)
PageKind = Literal["data", "data 2", "dictionary", "index"]
KINDS: tuple[PageKind, ...] = ("data", "index", "dictionary", "data 2")
#: The field of a header that describes a page of this kind.
DETAILS = {"data": 5, "index": 6, "dictionary": 7, "data 2": 8}
PLAIN, RLE = 0, 3
DICTIONARY_ENCODINGS = (2, 8)


class Page(NamedTuple):
    """One page: where its data are, their size packed and unpacked, and its first row.

    `first` counts the values of the column before it, which are rows where values do not repeat.
    """

    kind: PageKind
    offset: int
    size: int
    unpacked: int
    first: int
    values: int
    header: dict[int, Any]

    @property
    def encoding(self) -> Any:
        """How the values are written: PLAIN, or indices into a dictionary."""
        return self.header.get(4 if self.kind == "data 2" else 2)


def is_data(page: Page) -> bool:
    """Whether the page holds values of rows."""
    return page.kind in ("data", "data 2")


def read_pages(file: BinaryIO, column: Any) -> Iterator[Page]:
    """The pages of a column chunk, from its metadata. Raises ValueError for damaged headers."""
    start, end = chunk_range(column)
    values = 0
    while values < column.num_values and start < end:
        page = read_page(file, start, values)
        if is_data(page):
            values += page.values
        start = page.offset + page.size
        yield page
    if values != column.num_values:
        raise ValueError(f"{column.num_values} values are announced, and there are {values}")


def chunk_range(column: Any) -> tuple[int, int]:
    """Where the pages of a column chunk begin and end, as Arrow reads them."""
    start = column.data_page_offset
    dictionary = column.dictionary_page_offset
    if column.has_dictionary_page and dictionary and 0 < dictionary < start:
        start = dictionary
    return start, start + column.total_compressed_size


def read_page(file: BinaryIO, offset: int, first: int) -> Page:
    """The page whose header is at the offset. Raises ValueError."""
    for size in HEADER_BYTES:
        file.seek(offset)
        reader = CompactReader(read_fully(file, size))
        try:
            header = reader.struct()
        except Truncated:
            continue
        kind, unpacked, size = header.get(1, -1), header.get(2, -1), header.get(3, -1)
        if not 0 <= kind < len(KINDS) or min(unpacked, size) < 0:
            break
        details = header.get(DETAILS[KINDS[kind]], {})
        values = details.get(1, 0) if isinstance(details, dict) else -1
        if not isinstance(values, int) or values < 0:
            break
        start = offset + reader.offset
        return Page(KINDS[kind], start, size, unpacked, first, values, details)
    raise ValueError(f"there is no page at {offset}")


def read_fully(file: BinaryIO, size: int) -> bytes:
    """The next `size` bytes, or those up to the end of the file."""
    pieces: list[bytes] = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
