"""Unpacks the runs of small numbers that Parquet writes for levels and dictionary indices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Groups of eight numbers that are unpacked at once.
GROUPS = 4096
MAX_WIDTH = 32


def runs(data: memoryview, width: int) -> Iterator[tuple[int, int]]:
    """Numbers of `width` bits and how often each follows itself, of RLE and bit-packed runs.

    Raises ValueError for data that end within a run.
    """
    if not 0 <= width <= MAX_WIDTH:
        raise ValueError(f"numbers of {width} bits")
    offset = 0
    while offset < len(data):
        head, offset = varint(data, offset)
        if head & 1:
            size = (head >> 1) * width
            if width == 0:
                yield 0, (head >> 1) * 8
            for start in range(offset, min(offset + size, len(data)), GROUPS * max(width, 1)):
                end = min(start + GROUPS * width, offset + size, len(data))
                for value in unpack_bits(data[start:end], width):
                    yield value, 1
            offset += size
        else:
            end = offset + (width + 7) // 8
            yield int.from_bytes(data[offset:end], "little"), head >> 1
            offset = end


def varint(data: memoryview, offset: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the offset behind it. Raises ValueError."""
    value = shift = 0
    while offset < len(data) and shift < 64:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
    raise ValueError("a run has no length")


def unpack_bits(data: memoryview, width: int) -> list[int]:
    """The whole numbers of `width` bits in the data, least significant bit first."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    numbers = bits[: len(bits) // width * width].reshape(-1, width)
    found: list[int] = (numbers @ (1 << np.arange(width, dtype=np.int64))).tolist()
    return found
