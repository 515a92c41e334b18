"""A mask as the one polygon that YOLO's labels have for an object, its parts and holes joined."""

from __future__ import annotations

import numpy as np

from pgcli.records import Rle
from pgcli.views.exports.mask_contours import loops

MOST_LOOPS = 64  # the largest; the model's masks have 64 pixels a side, and a few of them
MOST_TRIED = 512  # points of a loop that may begin a bridge


def polygon(mask: Rle) -> np.ndarray:
    """The mask's border as one closed line, (n, 2) of x and y in pixels, from 0 to the sides.

    It holds the middles of the mask's pixels and of no others. Parts and holes hang on bridges of
    no width, walked there and back, as Ultralytics joins COCO's. Empty where `corners` has none.
    """
    largest = sorted(loops(mask), key=area, reverse=True)[:MOST_LOOPS]
    if not largest:
        return np.empty((0, 2))
    joined, *rest = map(smoothed, largest)
    newest, gaps = joined, [np.inf] * len(rest)
    while rest:
        gaps = [min(gap, nearest(newest, loop)[0]) for gap, loop in zip(gaps, rest, strict=True)]
        place = gaps.index(min(gaps))
        del gaps[place]
        newest = rest.pop(place)
        joined = bridged(joined, newest)
    return joined


def smoothed(loop_n2: np.ndarray) -> np.ndarray:
    """The loop through the middles of its pixels' sides: stairs become slopes.

    It holds the middles of the pixels that the loop held, and reaches as far.
    """
    onward = np.roll(loop_n2, -1, axis=0) - loop_n2
    half = np.sign(onward)  # half of a pixel's side, as everything is doubled
    ends = np.stack([2 * loop_n2 + half, 2 * (loop_n2 + onward) - half], axis=1).reshape(-1, 2)
    ends = ends[(ends != np.roll(ends, 1, axis=0)).any(axis=1)]
    before, after = ends - np.roll(ends, 1, axis=0), np.roll(ends, -1, axis=0) - ends
    turns = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
    halved: np.ndarray = ends[turns] / 2
    return halved


def area(loop_n2: np.ndarray) -> float:
    """What a loop encloses, whichever way it goes."""
    x, y = loop_n2.T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def bridged(one_n2: np.ndarray, other_n2: np.ndarray) -> np.ndarray:
    """Both lines as one: from where they are nearest over to the other, round it, and back."""
    _, here, there = nearest(one_n2, other_n2)
    around = np.roll(other_n2, -there, axis=0)
    return np.concatenate([one_n2[: here + 1], around, around[:1], one_n2[here:]])


def nearest(one_n2: np.ndarray, other_n2: np.ndarray) -> tuple[float, int, int]:
    """The square of the distance of two lines' nearest points, and their places.

    Of very long lines only some of the points are looked at.
    """
    steps = [-(-len(line) // MOST_TRIED) for line in (one_n2, other_n2)]
    across, down = (one_n2[:: steps[0], None] - other_n2[None, :: steps[1]]).transpose(2, 0, 1)
    squares = across**2 + down**2
    place = int(squares.argmin())
    here, there = divmod(place, squares.shape[1])
    return float(squares.flat[place]), here * steps[0], there * steps[1]
