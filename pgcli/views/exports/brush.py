"""A mask as Label Studio's brush paints it: the run lengths of a picture's bytes, in bits.

The bytes are those of red, green, blue and alpha, row by row, all 255 where the mask is. After 32
bits of how many they are come 5 of a byte's bits and 4 for each size of a length, all less one.
Each run is a 1, two bits for its length's size, its length less one, and its byte.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pgcli.records import Rle
from pgcli.views.exports.mask_contours import rows

CHANNELS = 4
BITS = 8  # of a value
SIZES = (3, 4, 8, 16)  # bits of a length less one
LONGEST = 1 << SIZES[-1]
MOST_BYTES = 1 << 32  # their number has 32 bits


def brush(mask: Rle) -> bytes:
    """The mask's encoding, as Label Studio's own converter spells it.

    Nothing for an empty mask, and for one of a picture too large for the encoding.
    """
    runs_n2 = CHANNELS * rows(mask)
    total = CHANNELS * mask.size[0] * mask.size[1]
    if not len(runs_n2) or total >= MOST_BYTES:
        return b""
    lengths = np.diff(runs_n2.ravel(), prepend=0, append=total).tolist()
    head = f"{total:032b}{BITS - 1:05b}" + "".join(f"{size - 1:04b}" for size in SIZES)
    bits = head + "".join(
        word
        for number, length in enumerate(lengths)
        for word in words(length, 255 if number % 2 else 0)
    )
    bits += "0" * (8 - len(bits) % 8)  # a whole byte where none is needed: so the converter does
    return int(bits, 2).to_bytes(len(bits) // 8)


def words(length: int, value: int) -> Iterator[str]:
    """A run's bits; of a long one in several words, of an empty one none."""
    while length > 0:
        part = min(length, LONGEST)
        place = next(place for place, size in enumerate(SIZES) if part <= 1 << size)
        yield f"1{place:02b}{part - 1:0{SIZES[place]}b}{value:0{BITS}b}"
        length -= part
