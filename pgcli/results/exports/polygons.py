"""Converts a mask to the single polygon that YOLO's labels allow, with its parts joined."""

from __future__ import annotations

import numpy as np

from pgcli.records import Rle
from pgcli.results.exports.mask_contours import contours

MAX_CONTOURS = 64  # the largest ones; masks of the model have 64 pixels a side and few contours
MAX_BRIDGE_POINTS = 512  # points of a contour that are tried as the start of a bridge


def polygon(mask: Rle) -> np.ndarray:
    """The mask as one closed polygon, (n, 2) of x and y in pixels.

    It contains the centres of the mask's pixels and of no others. Parts and holes are joined by
    bridges of no width, as Ultralytics joins COCO's polygons. Empty where `contours` is.
    """
    largest = sorted(contours(mask), key=area, reverse=True)[:MAX_CONTOURS]
    if not largest:
        return np.empty((0, 2))
    merged, *rest = map(smoothed, largest)
    newest, gaps = merged, [np.inf] * len(rest)
    while rest:
        gaps = [min(gap, closest(newest, other)[0]) for gap, other in zip(gaps, rest, strict=True)]
        index = gaps.index(min(gaps))
        del gaps[index]
        newest = rest.pop(index)
        merged = bridged(merged, newest)
    return merged


def smoothed(contour_n2: np.ndarray) -> np.ndarray:
    """The contour through the midpoints of its pixel sides, which turns stairs into slopes.

    It contains the same pixel centres and has the same extent.
    """
    step = np.roll(contour_n2, -1, axis=0) - contour_n2
    half = np.sign(step)  # half of a pixel side, as all coordinates are doubled
    ends = np.stack([2 * contour_n2 + half, 2 * (contour_n2 + step) - half], axis=1).reshape(-1, 2)
    ends = ends[(ends != np.roll(ends, 1, axis=0)).any(axis=1)]
    before, after = ends - np.roll(ends, 1, axis=0), np.roll(ends, -1, axis=0) - ends
    is_corner = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
    halved: np.ndarray = ends[is_corner] / 2
    return halved


def area(contour_n2: np.ndarray) -> float:
    """The enclosed area, for either direction."""
    x, y = contour_n2.T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def bridged(one_n2: np.ndarray, other_n2: np.ndarray) -> np.ndarray:
    """Both polygons as one: from the closest point to the other polygon, around it, and back."""
    _, start, end = closest(one_n2, other_n2)
    around = np.roll(other_n2, -end, axis=0)
    return np.concatenate([one_n2[: start + 1], around, around[:1], one_n2[start:]])


def closest(one_n2: np.ndarray, other_n2: np.ndarray) -> tuple[float, int, int]:
    """The squared distance of two polygons' closest points, and their indices.

    Only every n-th point of a very long polygon is tried.
    """
    steps = [-(-len(points) // MAX_BRIDGE_POINTS) for points in (one_n2, other_n2)]
    x, y = (one_n2[:: steps[0], None] - other_n2[None, :: steps[1]]).transpose(2, 0, 1)
    squares = x**2 + y**2
    index = int(squares.argmin())
    start, end = divmod(index, squares.shape[1])
    return float(squares.flat[index]), start * steps[0], end * steps[1]
