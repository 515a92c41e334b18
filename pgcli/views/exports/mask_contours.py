"""Where the borders of a mask run: from run lengths to corners, loops, and runs along the rows.

Takes memory for the border only, so that a picture's size costs nothing.
"""

from __future__ import annotations

import numpy as np

from pgcli.records import Rle
from pgcli.rle import joined, spans

#: Of one mask: what has more is no mask of a picture, but a few characters that spell one.
MOST_SIDES = 1 << 21


def corners(mask: Rle) -> tuple[np.ndarray, np.ndarray]:
    """The corners of a mask's border, (n, 2) of x and y, from left to right and down.

    Two at a time are the ends of an upright side; the second array has 1 where what is in lies to
    the right of that side, -1 where it lies to the left. Where two pixels touch at a corner only,
    it is there twice. Empty for an empty mask, and for one of more than MOST_SIDES.
    """
    height = mask.size[0]
    runs_n2 = spans(mask)
    first, last = runs_n2[:, 0] // height, (runs_n2[:, 1] - 1) // height
    lengths = last - first + 1  # columns that a run goes over
    if lengths.sum() > MOST_SIDES:
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)
    start, end = (np.repeat(one, lengths) for one in (runs_n2[:, 0], runs_n2[:, 1]))
    column = np.repeat(first, lengths) + counted(lengths)
    top = np.maximum(start - column * height, 0)
    bottom = np.minimum(end - column * height, height)
    # along each upright line: by how much what is in to the right goes ahead of that to the left
    line, below = column * (height + 1), height + 1
    places = np.concatenate([line + top, line + bottom, line + below + top, line + below + bottom])
    change = np.repeat([1, -1, -1, 1], len(column))
    places, which = np.unique(places, return_inverse=True)
    change = np.bincount(which, weights=change, minlength=len(places)).astype(np.int64)
    places = np.repeat(places, np.abs(change))
    ahead = np.cumsum(np.sign(np.repeat(change, np.abs(change))))
    at_n2 = np.stack(np.divmod(places, height + 1), axis=1)
    return at_n2, ahead[::2]


def loops(mask: Rle) -> list[np.ndarray]:
    """The borders of a mask as closed loops of corners, (n, 2) of x and y each.

    What is in lies to the left of each as it is walked, so that holes go round the other way.
    """
    at_n2, ahead = corners(mask)
    across = np.empty(len(at_n2), np.int64)  # a level side's other end
    by_row = np.lexsort((at_n2[:, 0], at_n2[:, 1]))
    across[by_row[0::2]], across[by_row[1::2]] = by_row[1::2], by_row[0::2]
    onward, is_outer = across.tolist(), (ahead > 0).tolist()
    is_seen = bytearray(len(ahead))
    found = []
    for side in range(len(ahead)):
        loop, place = list[int](), 2 * side
        while not is_seen[place // 2]:
            is_seen[place // 2] = 1
            loop += (place, place ^ 1)
            place = onward[place ^ 1]
        if loop:
            found.append(at_n2[loop if is_outer[side] else loop[::-1]])
    return found


def rows(mask: Rle) -> np.ndarray:
    """Where the runs of a mask start and end in the picture read by rows, (n, 2), none touching.

    Empty where `corners` has none, and where there would be more than MOST_SIDES.
    """
    ends_n22 = corners(mask)[0].reshape(-1, 2, 2)
    x, top, lengths = ends_n22[:, 0, 0], ends_n22[:, 0, 1], np.diff(ends_n22[:, :, 1]).ravel()
    if lengths.sum() > MOST_SIDES:
        return np.empty((0, 2), np.int64)
    places = (np.repeat(top, lengths) + counted(lengths)) * mask.size[1] + np.repeat(x, lengths)
    return joined(np.sort(places).reshape(-1, 2))


def counted(lengths: np.ndarray) -> np.ndarray:
    """From 0 up to each length, one after the other."""
    begins = np.cumsum(lengths) - lengths
    numbers: np.ndarray = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    return numbers
