"""Reads the masks of Label Studio's brush: run lengths of an image's red, green, blue and alpha."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pgcli.records import Rle
from pgcli.results.imports.shapes import PixelSize
from pgcli.rle import encode_mask

CHANNELS = 4
WORD_BITS = 8  # of a value; Label Studio's own reader keeps no more


def brush_mask(data: Sequence[object], size: PixelSize) -> Rle | None:
    """The mask of the pixels with any alpha; None if there are none.

    After the number of values, the bits of a value and four lengths of counts, blocks follow: a bit
    that says whether one value is repeated, two for the length of the count, the count less one,
    and the value or values (https://github.com/thi-ng/umbrella/tree/develop/packages/rle-pack).
    Raises ValueError for other content, and for an image of another size.
    """
    width, height = size
    bits = BitReader(data)
    count, word_bits = bits.number(32), bits.number(5) + 1
    lengths = [bits.number(4) + 1 for _ in range(4)]
    if count != width * height * CHANNELS or word_bits != WORD_BITS:
        raise ValueError("a mask of another size")
    is_painted = np.zeros(width * height, bool)
    for start, end, values in blocks(bits, count, lengths):
        if len(values) == 1:
            is_painted[start // CHANNELS : end // CHANNELS] = values[0] > 0
        else:  # alpha is the last of four
            first = -(start + 1) % CHANNELS
            alpha = values[first::CHANNELS]
            pixel = (start + first) // CHANNELS
            is_painted[pixel : pixel + len(alpha)] = alpha > 0
    return encode_mask(is_painted.reshape(height, width)) if is_painted.any() else None


def blocks(
    bits: BitReader, count: int, lengths: Sequence[int]
) -> Iterator[tuple[int, int, np.ndarray]]:
    """The start and the end of each block, and its values: one if it is repeated."""
    start = 0
    while start < count:
        is_repeated = bits.number(1)
        end = start + 1 + bits.number(lengths[bits.number(2)])
        if end > count:
            raise ValueError("more values than an image has")
        yield start, end, bits.values(1 if is_repeated else end - start)
        start = end


class BitReader:
    """Reads numbers from bytes, the highest bit first. Raises ValueError at the end."""

    def __init__(self, data: Sequence[object]):
        if not all(type(byte) is int and 0 <= byte < 256 for byte in data):
            raise ValueError("not bytes")
        self._bits = np.unpackbits(np.array(data, np.uint8))
        self._digits = (self._bits + ord("0")).tobytes()
        self._position = 0

    def number(self, bits: int) -> int:
        """The number in the next bits."""
        return int(self._digits[self._next(bits)], 2)

    def values(self, count: int) -> np.ndarray:
        """So many numbers of eight bits."""
        return np.packbits(self._bits[self._next(count * WORD_BITS)])

    def _next(self, bits: int) -> slice:
        start, self._position = self._position, self._position + bits
        if self._position > len(self._bits):
            raise ValueError("the run lengths end early")
        return slice(start, self._position)
