"""Label Studio's brush format: masks as run lengths in bits.

The format is a run-length encoding of RGBA bytes in row order, all 255 inside the mask. A header
has the number of bytes (32 bits), then, all less one, the bits of a value (5) and of each size of a
run length (4). Each run is a 1, the index of its length's size (2 bits), its length less one, and
its value; a 0 in place of the 1 precedes as many values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pgcli.records import Rle
from pgcli.results.masks import row_runs
from pgcli.rle import encode

CHANNELS, ALPHA = 4, 3
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
    bits = f"{total:032b}{VALUE_BITS - 1:05b}" + "".join(f"{size - 1:04b}" for size in LENGTH_BITS)
    bits += "".join(
        word
        for number, length in enumerate(lengths)
        for word in run_words(length, 255 if number % 2 else 0)
    )
    bits += "0" * (8 - len(bits) % 8)  # the converter pads complete bytes with another byte
    return int(bits, 2).to_bytes(len(bits) // 8)


def run_words(length: int, value: int) -> Iterator[str]:
    """The bits of a run, split into several words if it is long; none for an empty run."""
    while length > 0:
        count = min(length, MAX_LENGTH)
        size = next(index for index, bits in enumerate(LENGTH_BITS) if count <= 1 << bits)
        yield f"1{size:02b}{count - 1:0{LENGTH_BITS[size]}b}{value:0{VALUE_BITS}b}"
        length -= count


def decode_brush(values: Sequence[int], size: tuple[int, int]) -> Rle | None:
    """The mask of an image of `size` (width, height); None for an empty one.

    Raises ValueError for bytes that are not a brush of such an image. Needs memory for the image's
    pixels and the bits only, whatever they say.
    """
    width, height = size
    steps = np.zeros(width * height + 1, np.int8)
    for start, end in inside_runs("".join(f"{byte:08b}" for byte in bytes(values)), size):
        # of bytes; those of alpha decide about a pixel
        first, last = (max(0, -(-(byte - ALPHA) // CHANNELS)) for byte in (start, end))
        if first < last:
            steps[first] += 1
            steps[last] -= 1
    mask = np.cumsum(steps[:-1], dtype=np.int8).astype(bool).reshape(height, width)
    return encode(mask) if mask.any() else None


def inside_runs(bits: str, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Starts and ends of the runs of bytes that are not 0. Raises ValueError."""
    position, total = 0, CHANNELS * size[0] * size[1]

    def read(count: int) -> int:
        nonlocal position
        position += count
        if position > len(bits):
            raise ValueError("the bits end early")
        return int(bits[position - count : position], 2)

    if read(32) != total:
        raise ValueError("it is of another number of bytes")
    value_bits = read(5) + 1
    length_bits = [read(4) + 1 for _ in range(4)]
    start = 0
    while start < total:
        is_run = read(1)
        length = read(length_bits[read(2)]) + 1
        if start + length > total:
            raise ValueError("a run exceeds the image")
        for count in (length,) if is_run else (1,) * length:
            if read(value_bits):
                yield start, start + count
            start += count
