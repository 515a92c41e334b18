"""Boxes and masks of regions: clipped boxes, filled polygons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pgcli.images import ImageLimits
from pgcli.labels.json_values import InvalidValue, number, whole_number
from pgcli.labels.labelled_image import PixelSize
from pgcli.records import Region, Rle
from pgcli.rle import encode_runs, mask_area, union

MAX_CROSSINGS = 20_000_000  # of a region's polygons with the columns of its image


def checked_size(width: object, height: object, what: str) -> PixelSize:
    """The size of an image. Raises InvalidValue, also for too many pixels."""
    size = whole_number(width, f"{what}: width"), whole_number(height, f"{what}: height")
    if not 0 < size[0] * size[1] <= ImageLimits().max_pixels:
        raise InvalidValue(f"{what}: {size[0]} x {size[1]} is not the size of an image")
    return size


def points(flat: Sequence[object], what: str) -> np.ndarray:
    """A flat list of x and y as (n, 2), three points or more. Raises InvalidValue."""
    if len(flat) < 6 or len(flat) % 2:
        raise InvalidValue(f"{what} is not a polygon of three points or more")
    return np.array([number(coordinate, what) for coordinate in flat]).reshape(-1, 2)


def bounds(polygons: Sequence[np.ndarray]) -> Region:
    """Left, top, right and bottom of polygons."""
    every = np.concatenate(polygons)
    (left, top), (right, bottom) = every.min(axis=0).tolist(), every.max(axis=0).tolist()
    return left, top, right, bottom


def rotated_bounds(corners: Region, degrees: float, pivot: tuple[float, float]) -> Region:
    """The bounds of a box after a clockwise rotation about a point."""
    (x, y), (left, top, right, bottom) = pivot, corners
    cosine, sine = rotation(degrees)
    corner_42 = np.array([(left, top), (right, top), (left, bottom), (right, bottom)]) - (x, y)
    return bounds([corner_42 @ [[cosine, sine], [-sine, cosine]] + (x, y)])


def rotation(degrees: float) -> tuple[float, float]:
    """The cosine and the sine of an angle, exact for right angles."""
    degrees %= 360
    if degrees % 90 == 0:
        return [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)][int(degrees // 90)]
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def fill(polygons: Sequence[np.ndarray], size: PixelSize, what: str) -> Rle | None:
    """The mask of pixels with centres in the polygons (n, 2), by the even-odd rule, or None.

    Raises InvalidValue for polygons with too many points.
    """
    width, height = size
    runs = (_runs(polygon, size, what) for polygon in polygons)
    mask = union([encode_runs(runs_n2, size=(height, width)) for runs_n2 in runs])
    return mask if mask_area(mask) else None


def _runs(polygon_n2: np.ndarray, size: PixelSize, what: str) -> np.ndarray:
    """The runs of a polygon's pixels in the image read by columns, (n, 2)."""
    width, height = size
    start_n2, end_n2 = polygon_n2, np.roll(polygon_n2, -1, axis=0)
    low = np.minimum(start_n2[:, 0], end_n2[:, 0])
    high = np.maximum(start_n2[:, 0], end_n2[:, 0])
    first, last = (np.clip(np.ceil(side - 0.5), 0, width).astype(np.int64) for side in (low, high))
    crossings = last - first  # columns with centres that the edge passes
    if crossings.sum() > MAX_CROSSINGS:
        raise InvalidValue(f"{what} has too many points")
    edge = np.repeat(np.arange(len(polygon_n2)), crossings)
    before = np.repeat(np.cumsum(crossings) - crossings, crossings)
    column = first[edge] + np.arange(len(edge)) - before
    (x, y), (next_x, next_y) = start_n2[edge].T, end_n2[edge].T
    at = y + (column + 0.5 - x) * (next_y - y) / (next_x - x)
    row = np.clip(np.ceil(at - 0.5), 0, height).astype(np.int64)
    order = np.lexsort((row, column))
    runs_n2: np.ndarray = (column * height + row)[order].reshape(-1, 2)
    return runs_n2
