"""The contours of a mask, as a polygon for exports and as a path for pages."""

from __future__ import annotations

import math

import numpy as np

from pgcli.images import ImageLimits
from pgcli.records import Region, Rle
from pgcli.rle import decode_mask, mask_bounds, run_ends

MAX_SIDES = 1 << 20  # pixel sides of all contours; a mask with more is noise, and has none
MAX_CONTOURS = 64  # the largest ones; masks of the model have 64 pixels a side and few contours
MAX_BRIDGE_POINTS = 512  # points of a contour that are tried as the end of a bridge
SAMPLES = 96  # per side of a drawn mask; the model's masks have 64 per side of a box

#: The distances by which a point can move without passing a pixel's centre. A polygon contains the
#: centres on its left and upper sides only.
HALF_PIXEL, UNDER_HALF = 0.5, math.nextafter(0.5, 0.0)


def contours(pixels: np.ndarray) -> list[np.ndarray]:
    """The contours through the midpoints of the pixel sides of a mask, (n, 2) of x and y each.

    Stairs become slopes, which contain the same pixel centres. The mask is on the right of every
    contour, so holes have the opposite direction.
    """
    padded = np.pad(pixels.astype(np.int8), 1)
    below, right = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    (y, x), (v, u) = np.nonzero(below), np.nonzero(right)
    if len(x) + len(u) > MAX_SIDES:
        return []
    across, up = below[y, x] > 0, right[v, u] > 0  # with the mask on the right
    starts_n2 = np.concatenate([np.stack([x + ~across, y], 1), np.stack([u, v + up], 1)])
    ends_n2 = np.concatenate([np.stack([x + across, y], 1), np.stack([u, v + ~up], 1)])
    ends = dict[tuple[int, int], list[tuple[int, int]]]()  # by start
    for start, end in zip(
        map(tuple, starts_n2.tolist()), map(tuple, ends_n2.tolist()), strict=True
    ):
        ends.setdefault(start, []).append(end)
    loops = []
    for first, following in ends.items():
        while following:
            middles, corner = list[tuple[float, float]](), first
            while leaving := ends[corner]:
                end = leaving.pop()
                middles.append(((corner[0] + end[0]) / 2, (corner[1] + end[1]) / 2))
                corner = end
            contour_n2 = np.array(middles)
            before = contour_n2 - np.roll(contour_n2, 1, axis=0)
            after = np.roll(contour_n2, -1, axis=0) - contour_n2
            # without the points inside of straight lines
            loops.append(contour_n2[before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]])
    return loops


def polygon(mask: Rle, extent: Region | None = None) -> np.ndarray:
    """The mask as one closed polygon for YOLO and Label Studio, (n, 2) of x, y in pixels.

    It contains the centres of exactly the mask's pixels. Bridges of zero width join parts and
    holes, as in Ultralytics. Empty for an empty mask, and for one larger than any image, which a
    few characters can encode. With an `extent`, the polygon extends to these sides.
    """
    merged = np.empty((0, 2))
    if mask.size[0] * mask.size[1] > ImageLimits().max_pixels:
        return merged
    for contour in sorted(contours(decode_mask(mask)), key=enclosed_area, reverse=True)[
        :MAX_CONTOURS
    ]:
        merged = bridged(merged, contour) if len(merged) else contour
    return fitted_polygon(merged, extent) if extent and len(merged) else merged


def fitted_polygon(polygon_n2: np.ndarray, extent: Region) -> np.ndarray:
    """The polygon with this extent: less than half a pixel is cut off, so that no pixel's centre
    changes sides, and lines of zero width reach further out.
    """
    for number, edge in enumerate(extent):
        axis, outwards = number % 2, -1 if number < 2 else 1
        beyond = (polygon_n2[:, axis] - edge) * outwards
        farthest = int(beyond.argmax())
        if beyond[farthest] < 0:
            tip = polygon_n2[farthest].copy()
            tip[axis] = edge
            polygon_n2 = np.insert(polygon_n2, farthest + 1, [tip, polygon_n2[farthest]], axis=0)
        elif beyond[farthest] <= (HALF_PIXEL if number < 2 else UNDER_HALF):
            following, next_n2 = np.roll(beyond, -1), np.roll(polygon_n2, -1, axis=0)
            crossing = np.flatnonzero(beyond * following < 0)
            share = (beyond[crossing] / (beyond - following)[crossing])[:, None]
            cuts_n2 = polygon_n2[crossing] + share * (next_n2 - polygon_n2)[crossing]
            polygon_n2 = np.insert(polygon_n2, crossing + 1, cuts_n2, axis=0)
            inwards = np.minimum(polygon_n2[:, axis] * outwards, edge * outwards)
            polygon_n2[:, axis] = inwards * outwards
    return polygon_n2


def enclosed_area(contour_n2: np.ndarray) -> float:
    """The enclosed area, for either direction."""
    x, y = contour_n2.T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def bridged(polygon_n2: np.ndarray, contour_n2: np.ndarray) -> np.ndarray:
    """Both as one polygon: from the closest point to the contour, around it, and back.

    Only every n-th point of a very long one is tried.
    """
    steps = [-(-len(points) // MAX_BRIDGE_POINTS) for points in (polygon_n2, contour_n2)]
    x, y = (polygon_n2[:: steps[0], None] - contour_n2[None, :: steps[1]]).transpose(2, 0, 1)
    start, end = divmod(int((x**2 + y**2).argmin()), x.shape[1])
    start, around = start * steps[0], np.roll(contour_n2, -end * steps[1], axis=0)
    return np.concatenate([polygon_n2[: start + 1], around, around[:1], polygon_n2[start:]])


def svg_path(mask: Rle) -> str:
    """The contours of a mask as the path of an SVG in pixels; empty for an empty mask.

    The mask is sampled within its bounds, not decoded, since a few characters can encode any size.
    Raises ValueError for invalid counts.
    """
    left, top, right, bottom = map(int, mask_bounds(mask))
    width, height = right - left, bottom - top
    columns, rows = min(SAMPLES, width), min(SAMPLES, height)
    x = left + ((np.arange(columns) + 0.5) * width / max(columns, 1)).astype(int)
    y = top + ((np.arange(rows) + 0.5) * height / max(rows, 1)).astype(int)
    runs = np.searchsorted(run_ends(mask), x * mask.size[0] + y[:, None], side="right")
    path = ""
    for contour_n2 in contours(runs % 2 == 1):
        points_n2 = (left, top) + contour_n2 * (width / columns, height / rows)
        path += f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in points_n2.tolist())}Z"
    return path
