"""Downsamples masks for the gallery page: sampled within their bounds, run-length encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pgcli.records import Rle
from pgcli.rle import encode, spans

SIDE = 96  # samples per side; the model's masks have 64 per side of a box

#: Left, top, width and height in the image's pixels; the grid's height and width; its runs.
MaskOutline = tuple[int, int, int, int, int, int, str]


def mask_outline(mask: object, width: int | None, height: int | None) -> MaskOutline | None:
    """What the page draws of a row's mask; None without a mask, or if its size is not the image's.

    A short string can encode a mask of any size, so no array of the image's size is allocated.
    """
    rle = mask.get("rle") if isinstance(mask, Mapping) else None
    if not isinstance(rle, Mapping) or not width or not height:
        return None
    counts, size = rle.get("counts"), rle.get("size")
    if not isinstance(counts, str) or list(_sequence(size)) != [height, width]:
        return None
    try:
        runs_n2 = spans(Rle((height, width), counts))
    except ValueError:
        return None
    return _sampled(runs_n2, height) if len(runs_n2) else None


def _sampled(runs_n2: np.ndarray, height: int) -> MaskOutline:
    first, last = runs_n2[:, 0], runs_n2[:, 1] - 1
    left, right = int(first[0] // height), int(last[-1] // height) + 1
    if (first // height == last // height).all():
        top, bottom = int((first % height).min()), int((last % height).max()) + 1
    else:  # a run continues in the next column, so the mask reaches both edges
        top, bottom = 0, height
    columns = _samples(left, right)
    rows = _samples(top, bottom)
    points = columns[None, :] * height + rows[:, None]
    run = np.searchsorted(runs_n2[:, 1], points, side="right")
    is_inside = runs_n2[np.minimum(run, len(runs_n2) - 1), 0] <= points
    grid = is_inside & (run < len(runs_n2))
    h, w = grid.shape
    return (left, top, right - left, bottom - top, h, w, encode(grid).counts)


def _samples(start: int, end: int) -> np.ndarray:
    """Up to SIDE evenly spaced integers between two."""
    count = min(SIDE, end - start)
    return start + ((np.arange(count) + 0.5) * (end - start) / count).astype(np.int64)


def _sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()
