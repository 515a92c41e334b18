"""Decodes Label Studio's brush format; `views/exports/brush.py` describes and writes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgcli.records import Rle
from pgcli.results.imports.value_checks import InvalidValue, whole_number
from pgcli.rle import encode

CHANNELS, ALPHA = 4, 3


def decode_brush(values: Sequence[object], size: tuple[int, int], what: str) -> Rle | None:
    """The mask of an image of `size` (width, height); None for an empty one. Raises InvalidValue.

    Needs memory for the image's pixels and the bits only, whatever they say.
    """
    width, height = size
    if any(whole_number(one, what) > 255 for one in values):
        raise InvalidValue(f"{what} is not made of bytes")
    bits = "".join(f"{one:08b}" for one in values)
    try:
        runs = inside_runs(bits, CHANNELS * width * height)
    except ValueError as problem:
        raise InvalidValue(f"{what} is not a brush of its image") from problem
    steps = np.zeros(width * height + 1, np.int8)
    for start, end in runs:  # of bytes; those of alpha decide about a pixel
        first, last = (max(0, -(-(one - ALPHA) // CHANNELS)) for one in (start, end))
        if first < last:
            steps[first] += 1
            steps[last] -= 1
    mask = np.cumsum(steps[:-1], dtype=np.int8).astype(bool).reshape(height, width)
    return encode(mask) if mask.any() else None


def inside_runs(bits: str, total: int) -> list[tuple[int, int]]:
    """Starts and ends of the runs of bytes that are not 0. Raises ValueError."""
    at = 0

    def read(count: int) -> int:
        nonlocal at
        at += count
        if at > len(bits):
            raise ValueError("the bits end early")
        return int(bits[at - count : at], 2)

    if read(32) != total:
        raise ValueError("another number of bytes")
    word = read(5) + 1
    lengths = [read(4) + 1 for _ in range(4)]
    place, runs = 0, []
    while place < total:
        is_run = read(1)
        length = read(lengths[read(2)]) + 1
        if place + length > total:
            raise ValueError("a run exceeds the image")
        for part in (length,) if is_run else (1,) * length:
            if read(word):
                runs.append((place, place + part))
            place += part
    return runs
