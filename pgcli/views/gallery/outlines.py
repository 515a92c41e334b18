"""Masks made small enough for a page: sampled within their own extent, run-length encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pgcli.records import Rle
from pgcli.rle import encode, spans

SIDE = 96  # samples across a mask's extent: the model's own are 64 to the box

#: Left, top, width, height in the picture's pixels; the grid's height and width; its runs.
Outline = tuple[int, int, int, int, int, int, str]


def outline(mask: object, width: int | None, height: int | None) -> Outline | None:
    """What the page draws of a row's mask; None where there is none, or it is not of this picture.

    A few characters can spell a mask of any size: nothing as large as the picture is ever made.
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


def _sampled(runs_n2: np.ndarray, height: int) -> Outline:
    first, last = runs_n2[:, 0], runs_n2[:, 1] - 1
    left, right = int(first[0] // height), int(last[-1] // height) + 1
    if (first // height == last // height).all():
        top, bottom = int((first % height).min()), int((last % height).max()) + 1
    else:  # a run goes over a column's foot, so there is something at both edges
        top, bottom = 0, height
    columns = _samples(left, right)
    rows = _samples(top, bottom)
    places = columns[None, :] * height + rows[:, None]
    run = np.searchsorted(runs_n2[:, 1], places, side="right")
    inside = runs_n2[np.minimum(run, len(runs_n2) - 1), 0] <= places
    grid = inside & (run < len(runs_n2))
    h, w = grid.shape
    return (left, top, right - left, bottom - top, h, w, encode(grid).counts)


def _samples(start: int, end: int) -> np.ndarray:
    """Up to SIDE places between two, evenly spread."""
    count = min(SIDE, end - start)
    return start + ((np.arange(count) + 0.5) * (end - start) / count).astype(np.int64)


def _sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()
