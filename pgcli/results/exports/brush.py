"""Encodes a mask in Label Studio's brush format.

The format is a run-length encoding of RGBA bytes in row order, all 255 inside the mask. A header
has the number of bytes (32 bits), then, all less one, the bits of a value (5) and of each size of a
run length (4). Each run is a 1, the index of its length's size (2 bits), its length less one, and
its value.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pgcli.records import Rle
from pgcli.results.exports.mask_contours import row_runs

CHANNELS = 4
VALUE_BITS = 8
LENGTH_BITS = (3, 4, 8, 16)  # of a run length less one
MAX_LENGTH = 1 << LENGTH_BITS[-1]
MAX_BYTES = 1 << 32  # the header has 32 bits for their number


def encode_brush(mask: Rle) -> bytes:
    """The mask's encoding, equal to that of Label Studio's converter.

    Empty for an empty mask, and for a mask of an image that is too large for the format.
    """
    runs_n2 = CHANNELS * row_runs(mask)
    total = CHANNELS * mask.size[0] * mask.size[1]
    if not len(runs_n2) or total >= MAX_BYTES:
        return b""
    lengths = np.diff(runs_n2.ravel(), prepend=0, append=total).tolist()
    sizes = "".join(f"{bits - 1:04b}" for bits in LENGTH_BITS)
    header = f"{total:032b}{VALUE_BITS - 1:05b}{sizes}"
    bits = header + "".join(
        word
        for number, length in enumerate(lengths)
        for word in run_words(length, 255 if number % 2 else 0)
    )
    bits += "0" * (8 - len(bits) % 8)  # the converter pads complete bytes with another byte
    return int(bits, 2).to_bytes(len(bits) // 8)


def run_words(length: int, value: int) -> Iterator[str]:
    """The bits of a run, split into several words if it is long; none for an empty run."""
    while length > 0:
        part = min(length, MAX_LENGTH)
        size = next(index for index, bits in enumerate(LENGTH_BITS) if part <= 1 << bits)
        yield f"1{size:02b}{part - 1:0{LENGTH_BITS[size]}b}{value:0{VALUE_BITS}b}"
        length -= part
