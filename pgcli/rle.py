"""COCO's compressed run-length encoding of masks: pycocotools, and functions that it lacks.

A mask is read column by column, from left to right. The counts are the lengths of its runs of
zeros and ones in turn, zeros first; from the fourth on each is stored as its difference from the
count two before. A number is stored as five bits in each character, the lowest first; the sixth bit
says that another character follows, and 48 is added to make the character printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco

from pgcli.records import Region, Rle

BITS = 5
MORE = 1 << BITS  # set if another character follows
NEGATIVE = 1 << (BITS - 1)  # in the last character of a number: the bits above it are ones
ZERO = 48  # "0"
MAX_CHARACTERS = 7  # of one number: 35 bits, more than any image has pixels
MAX_PIXELS = 2**32 - 1  # pycocotools counts in 32 bits

#: A part of an image's mask, bool (h, w), and the position of its top left corner: left, top.
MaskPart = tuple[np.ndarray, int, int]


def encode_mask(mask: np.ndarray) -> Rle:
    """The encoding of a bool mask (height, width)."""
    return _from_coco(coco.encode(np.asfortranarray(mask, dtype=np.uint8)))


def encode_mask_parts(parts: Iterable[MaskPart], *, size: tuple[int, int]) -> Rle:
    """The encoding of an image's mask from parts that do not overlap, in any order.

    `size` is the image's (height, width). Needs memory for one part and the runs only. Raises
    ValueError if a part exceeds the image.
    """
    runs_n2 = np.concatenate([np.empty((0, 2), np.int64), *(_runs(*part, size) for part in parts)])
    # disjoint: starts and ends keep their pairs
    return encode_runs(np.sort(runs_n2, axis=0), size=size)


def encode_runs(runs_n2: np.ndarray, *, size: tuple[int, int]) -> Rle:
    """The encoding of sorted runs that do not overlap, in the image read by columns."""
    runs_n2 = runs_n2[runs_n2[:, 0] < runs_n2[:, 1]]
    counts = np.diff(_joined(runs_n2).ravel(), prepend=0, append=size[0] * size[1])
    if len(counts) > 1 and counts[-1] == 0:
        counts = counts[:-1]
    return encode_counts(counts, size=size)


def encode_counts(counts: Sequence[int] | np.ndarray, *, size: tuple[int, int]) -> Rle:
    """The encoding of COCO's uncompressed counts. Raises ValueError if they do not fit the size."""
    lengths = np.asarray(counts, np.int64)
    _check_sum(lengths, size)
    return _from_coco(coco.frPyObjects({"size": size, "counts": lengths}, *size))


def decode_mask(mask: Rle) -> np.ndarray:
    """The mask as bool (height, width). Raises ValueError for invalid counts.

    A few characters can encode any size: first compare an untrusted mask's with the image's.
    """
    counts = np.diff(run_ends(mask), prepend=0)
    height, width = mask.size
    is_one = np.arange(len(counts)) % 2 == 1
    # in a ninth of the time of pycocotools, which fills pixel by pixel
    return np.repeat(is_one, counts).reshape(width, height).T


def mask_area(mask: Rle) -> int:
    """The number of pixels in the mask. Raises ValueError for invalid counts."""
    return int(coco.area(_to_coco(mask)))


def mask_bounds(mask: Rle) -> Region:
    """The smallest box around the mask's pixels. Raises ValueError for invalid counts."""
    left, top, width, height = coco.toBbox(_to_coco(mask)).tolist()
    return left, top, left + width, top + height


def union(masks: Sequence[Rle]) -> Rle:
    """The mask of the pixels that are in any of one or more masks of an image.

    Raises ValueError for invalid counts.
    """
    return _from_coco(coco.merge([*map(_to_coco, masks)]))


def run_ends(mask: Rle) -> np.ndarray:
    """The ends of the runs of zeros and ones in turn, in the image read by columns.

    Raises ValueError if they do not fit the size of the mask, or the text is not an encoding, which
    pycocotools would read past its end.
    """
    codes = np.frombuffer(mask.counts.encode("utf-8"), np.uint8).astype(np.int64) - ZERO
    ends = np.flatnonzero(codes & MORE == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if not len(ends) or ends[-1] != len(codes) - 1 or not np.all((codes >= 0) & (codes < 2 * MORE)):
        raise ValueError("the counts of a mask are not a run-length encoding")
    lengths = ends - starts + 1
    if lengths.max() > MAX_CHARACTERS:
        raise ValueError("the counts of a mask have a number larger than any image")
    shifts = BITS * (np.arange(len(codes)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((codes & (MORE - 1)) << shifts, starts)
    counts -= np.where(codes[ends] & NEGATIVE, 1 << (BITS * lengths), 0)
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    _check_sum(counts, mask.size)
    return np.cumsum(counts)


def read_mask(value: Any) -> Rle | None:
    """The mask of a row of any program, None without pixels: `{codes, rle}` of a result row, or
    `{size, counts}` of COCO. Raises ValueError.
    """
    runs = value.get("rle", value) if isinstance(value, Mapping) else value
    if runs is None:
        return None
    try:
        height, width = runs["size"]
        mask = Rle((int(height), int(width)), str(runs["counts"]))
    except (TypeError, KeyError, OverflowError) as problem:
        raise ValueError("it is not {size, counts}") from problem
    run_ends(mask)
    return mask


def _check_sum(counts: np.ndarray, size: tuple[int, int]) -> None:
    """Raise ValueError if the counts do not fit the size, which pycocotools does not check."""
    (height, width), pixels = size, size[0] * size[1]
    is_size = min(size) >= 0 and pixels <= MAX_PIXELS
    if not is_size or not len(counts) or counts.min() < 0 or counts.sum() != pixels:
        raise ValueError(f"the counts do not add up to {height} x {width} pixels")


def _to_coco(mask: Rle) -> dict[str, Any]:
    ends = run_ends(mask)
    if (ends[1:] == ends[:-1]).any():  # at an empty run, coco.merge may end
        mask = encode_runs(ends[: len(ends) // 2 * 2].reshape(-1, 2), size=mask.size)
    return {"size": mask.size, "counts": mask.counts}


def _from_coco(mask: dict[str, Any]) -> Rle:
    height, width = mask["size"]
    return Rle((height, width), mask["counts"].decode())


def _joined(runs_n2: np.ndarray) -> np.ndarray:
    """Sorted runs with touching ones joined, such as at the end of a column and the next start."""
    apart = runs_n2[:-1, 1] != runs_n2[1:, 0]
    ends = np.ones((2, len(runs_n2)), dtype=bool)
    ends[0, 1:] = ends[1, :-1] = apart
    return np.stack([runs_n2[ends[0], 0], runs_n2[ends[1], 1]], axis=1)


def _runs(mask: np.ndarray, left: int, top: int, size: tuple[int, int]) -> np.ndarray:
    """Starts and ends of the mask's runs in the image read by columns: (n, 2)."""
    (h, w), (height, width) = mask.shape, size
    if left < 0 or top < 0 or left + w > width or top + h > height:
        raise ValueError(f"a {h} x {w} mask at ({left}, {top}) leaves the {height} x {width} image")
    # an empty row above and below, so that each run starts and ends within its column
    columns = np.zeros((w, h + 2), dtype=bool)
    columns[:, 1:-1] = mask.T
    column, row = np.divmod(np.flatnonzero(columns[:, 1:] != columns[:, :-1]), h + 1)
    return ((left + column) * height + top + row).reshape(-1, 2)
