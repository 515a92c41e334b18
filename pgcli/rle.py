"""COCO's compressed run-length encoding of masks, as pycocotools writes and reads it.

A mask is read column by column, from left to right. The counts are the lengths of its runs of
zeros and ones in turn, zeros first; from the fourth on each is stored as its difference from the
count two before. A number is stored as five bits in each character, the lowest first; the sixth bit
says that another character follows, and 48 is added to make the character printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pgcli.records import Rle

BITS = 5
MORE = 1 << BITS  # set if another character follows
NEGATIVE = 1 << (BITS - 1)  # in the last character of a number: the bits above it are ones
ZERO = 48  # "0"
MAX_CHARACTERS = 8  # of one number: 40 bits, more than any image has pixels

#: A part of an image's mask, bool (h, w), and the position of its top left corner: left, top.
MaskPart = tuple[np.ndarray, int, int]


def encode(
    mask: np.ndarray, *, left: int = 0, top: int = 0, size: tuple[int, int] | None = None
) -> Rle:
    """The encoding of a bool mask (h, w) at (left, top) of an otherwise empty image.

    `size` is the image's (height, width), by default the mask's own; no array of that size is
    made. Raises ValueError if the mask exceeds the image.
    """
    return encode_mask_parts([(mask, left, top)], size=size or (mask.shape[0], mask.shape[1]))


def encode_mask_parts(parts: Iterable[MaskPart], *, size: tuple[int, int]) -> Rle:
    """The encoding of an image's mask from parts that do not overlap, in any order.

    `size` is the image's (height, width). Needs memory for one part and the runs only.
    """
    runs_n2 = np.concatenate([np.empty((0, 2), np.int64), *(_runs(*part, size) for part in parts)])
    # disjoint: starts and ends keep their pairs
    return encode_runs(joined(np.sort(runs_n2, axis=0)), size=size)


def encode_runs(runs_n2: np.ndarray, *, size: tuple[int, int]) -> Rle:
    """The encoding of sorted runs that do not touch, in the image read by columns."""
    counts = np.diff(runs_n2.ravel(), prepend=0, append=size[0] * size[1])
    if len(counts) > 1 and counts[-1] == 0:
        counts = counts[:-1]
    return Rle(size, _to_text(counts))


def encode_counts(counts: Sequence[int], *, size: tuple[int, int]) -> Rle:
    """The encoding of COCO's uncompressed counts. Raises ValueError if they do not fit the size."""
    if not counts or min(counts) < 0 or sum(counts) != size[0] * size[1]:
        raise ValueError(f"the counts do not add up to {size[0]} x {size[1]} pixels")
    return Rle(size, _to_text(np.array(counts, np.int64)))


def decode(rle: Rle) -> np.ndarray:
    """The mask as bool (height, width). Raises ValueError for invalid counts.

    A few characters can encode any size: compare that of an untrusted mask with the image's first.
    """
    counts = _counts(rle)
    height, width = rle.size
    is_one = np.arange(len(counts)) % 2 == 1
    return np.repeat(is_one, counts).reshape(width, height).T


def spans(rle: Rle) -> np.ndarray:
    """Starts and ends of the mask's runs in the image read by columns, (n, 2), none empty.

    Needs memory for the runs only, whatever the size. Raises ValueError for invalid counts.
    """
    ends = np.cumsum(_counts(rle))
    runs_n2 = ends[: len(ends) // 2 * 2].reshape(-1, 2)
    return runs_n2[runs_n2[:, 0] < runs_n2[:, 1]]


def area(rle: Rle) -> int:
    """The number of pixels in the mask. Raises ValueError for invalid counts.

    Needs memory for the runs only, whatever the size.
    """
    return int(_counts(rle)[1::2].sum())


def joined(runs_n2: np.ndarray) -> np.ndarray:
    """Sorted runs with touching ones joined, such as at the end of a column and the next start."""
    apart = runs_n2[:-1, 1] != runs_n2[1:, 0]
    ends = np.ones((2, len(runs_n2)), dtype=bool)
    ends[0, 1:] = ends[1, :-1] = apart
    return np.stack([runs_n2[ends[0], 0], runs_n2[ends[1], 1]], axis=1)


def _counts(rle: Rle) -> np.ndarray:
    """The lengths of the runs. Raises ValueError if they do not fit the size of the mask."""
    counts = _from_text(rle.counts)
    height, width = rle.size
    pixels = height * width
    if min(height, width, counts.min()) < 0 or counts.max() > pixels or counts.sum() != pixels:
        raise ValueError(f"the counts do not add up to {height} x {width} pixels")
    return counts


def _runs(mask: np.ndarray, left: int, top: int, size: tuple[int, int]) -> np.ndarray:
    """Starts and ends of the mask's runs in the image read by columns: (n, 2)."""
    (h, w), (height, width) = mask.shape, size
    if left < 0 or top < 0 or left + w > width or top + h > height:
        raise ValueError(f"a {h} x {w} mask at ({left}, {top}) leaves the {height} x {width} image")
    # an empty row above and below, so that each run starts and ends within its column
    columns = np.zeros((w, h + 2), dtype=bool)
    columns[:, 1:-1] = mask.T
    column, row = np.divmod(np.flatnonzero(columns[:, 1:] != columns[:, :-1]), h + 1)
    return joined(((left + column) * height + top + row).reshape(-1, 2))


def _to_text(counts: np.ndarray) -> str:
    remaining = counts.astype(np.int64)
    remaining[3:] -= counts[1:-2]
    continues = np.ones(len(remaining), dtype=bool)
    characters, written = [], []
    while continues.any():
        written.append(continues)
        low = remaining & (MORE - 1)
        remaining = remaining >> BITS
        continues = continues & np.where(low & NEGATIVE, remaining != -1, remaining != 0)
        characters.append(low + MORE * continues + ZERO)
    by_number = np.stack(characters, axis=1)[np.stack(written, axis=1)]
    text: str = by_number.astype(np.uint8).tobytes().decode("ascii")
    return text


def _from_text(text: str) -> np.ndarray:
    """The counts in a text. Raises ValueError if it is not an encoding."""
    codes = np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64) - ZERO
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
    return counts
