"""Finds the contours of a run-length encoded mask without decoding it.

Memory is proportional to the length of the contours, not to the size of the image.
"""

from __future__ import annotations

import numpy as np

from pgcli.records import Rle
from pgcli.rle import joined, spans

#: Of one mask: a mask with more sides is a crafted string, not a mask of an image.
MAX_SIDES = 1 << 21


def corners(mask: Rle) -> tuple[np.ndarray, np.ndarray]:
    """The corners of a mask's contours, (n, 2) of x and y, sorted by x, then y.

    Consecutive pairs are the ends of vertical sides; the second array is 1 where the mask is to the
    right of the side and -1 where it is to the left. The corner of two pixels that touch only there
    is listed twice. Empty for an empty mask, and for one with more than MAX_SIDES.
    """
    height = mask.size[0]
    runs_n2 = spans(mask)
    first, last = runs_n2[:, 0] // height, (runs_n2[:, 1] - 1) // height
    lengths = last - first + 1  # columns that a run covers
    if lengths.sum() > MAX_SIDES:
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)
    start, end = (np.repeat(one, lengths) for one in (runs_n2[:, 0], runs_n2[:, 1]))
    column = np.repeat(first, lengths) + ranges(lengths)
    top = np.maximum(start - column * height, 0)
    bottom = np.minimum(end - column * height, height)
    # on each vertical grid line, going down: the change of (mask to the right) - (mask to the left)
    line, step = column * (height + 1), height + 1
    points = np.concatenate([line + top, line + bottom, line + step + top, line + step + bottom])
    change = np.repeat([1, -1, -1, 1], len(column))
    points, which = np.unique(points, return_inverse=True)
    change = np.bincount(which, weights=change, minlength=len(points)).astype(np.int64)
    points = np.repeat(points, np.abs(change))
    side = np.cumsum(np.sign(np.repeat(change, np.abs(change))))
    xy_n2 = np.stack(np.divmod(points, height + 1), axis=1)
    return xy_n2, side[::2]


def contours(mask: Rle) -> list[np.ndarray]:
    """The contours of a mask as closed polygons, (n, 2) of x and y each.

    The mask is on the left of every contour, so holes have the opposite direction.
    """
    xy_n2, side = corners(mask)
    opposite = np.empty(len(xy_n2), np.int64)  # the other end of the horizontal side of a corner
    by_row = np.lexsort((xy_n2[:, 0], xy_n2[:, 1]))
    opposite[by_row[0::2]], opposite[by_row[1::2]] = by_row[1::2], by_row[0::2]
    next_corner, is_outer = opposite.tolist(), (side > 0).tolist()
    is_visited = bytearray(len(side))
    found = []
    for first in range(len(side)):
        contour, corner = list[int](), 2 * first
        while not is_visited[corner // 2]:
            is_visited[corner // 2] = 1
            contour += (corner, corner ^ 1)
            corner = next_corner[corner ^ 1]
        if contour:
            found.append(xy_n2[contour if is_outer[first] else contour[::-1]])
    return found


def row_runs(mask: Rle) -> np.ndarray:
    """Starts and ends of a mask's runs in row order, (n, 2); no two runs touch.

    Empty where `corners` is, and for a mask with more than MAX_SIDES runs.
    """
    ends_n22 = corners(mask)[0].reshape(-1, 2, 2)
    x, top, lengths = ends_n22[:, 0, 0], ends_n22[:, 0, 1], np.diff(ends_n22[:, :, 1]).ravel()
    if lengths.sum() > MAX_SIDES:
        return np.empty((0, 2), np.int64)
    points = (np.repeat(top, lengths) + ranges(lengths)) * mask.size[1] + np.repeat(x, lengths)
    return joined(np.sort(points).reshape(-1, 2))


def ranges(lengths: np.ndarray) -> np.ndarray:
    """The concatenation of `arange(length)` for each length."""
    starts = np.cumsum(lengths) - lengths
    numbers: np.ndarray = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    return numbers
