"""Where the label of each box goes: inside the picture, near its box, off the other labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

STEPS = 4  # label heights around a box that are tried before the whole picture is
GRID = 32  # places across and down a picture that are tried at most
MOST_COVERED = 1 / 3  # of its own box, if there is another place


class Frame(NamedTuple):
    """Whole pixels of a picture: right and bottom are the first ones no longer in it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top


def places(
    boxes: Sequence[Frame], sizes: Sequence[tuple[int, int] | None], picture: tuple[int, int]
) -> list[Frame | None]:
    """The place of each box's label of `sizes` (width, height), None for those of no label.

    A label lies on another only where the whole picture has no other place for it.
    """
    taken = np.empty((0, 4), dtype=np.int64)
    found: list[Frame | None] = []
    for box, size in zip(boxes, sizes, strict=True):
        place = None if size is None else _place(box, size, picture, taken)
        found.append(place)
        if place is not None:
            taken = np.vstack([taken, place])
    return found


def touches(one: Frame, other: Frame) -> bool:
    """Whether the frames overlap or share a part of an edge."""
    across = one.left <= other.right and other.left <= one.right
    return across and one.top <= other.bottom and other.top <= one.bottom


def _place(box: Frame, size: tuple[int, int], picture: tuple[int, int], taken: np.ndarray) -> Frame:
    near = _inside(list(_near(box, size)), size, picture)
    overlaps = _overlap(near, taken)
    free = near[overlaps == 0]
    if not len(free):
        grid = _inside(_grid(picture, size), size, picture)
        free = grid[_overlap(grid, taken) == 0]
        distance = np.abs(free[:, :2] - near[0, :2]).sum(axis=1)
        free = free[np.argsort(distance, kind="stable")]
    if not len(free):
        return Frame(*near[np.argmin(overlaps)].tolist())
    covered = _overlap(free, np.array([box])) / max(1, box.width * box.height)
    return Frame(*free[np.argmax(covered <= MOST_COVERED)].tolist())  # the first, if none is


def _near(box: Frame, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Left and top corners on the edges of the box, then further off; the best first."""
    width, height = size
    for step in range(STEPS):
        off = step * height
        for left in (box.left, box.right - width):
            yield left, box.top - height - off
            yield left, box.top + off
            yield left, box.bottom + off
            yield left, box.bottom - height - off
        for left in (box.right, box.left - width):
            yield left, box.top + off


def _grid(picture: tuple[int, int], size: tuple[int, int]) -> list[tuple[int, int]]:
    step_x = max(1, size[0] // 4, picture[0] // GRID)
    step_y = max(1, size[1], picture[1] // GRID)
    return [(x, y) for y in range(0, picture[1], step_y) for x in range(0, picture[0], step_x)]


def _inside(
    corners: Sequence[tuple[int, int]], size: tuple[int, int], picture: tuple[int, int]
) -> np.ndarray:
    """Frames (n, 4) of this size with these left top corners, moved into the picture."""
    start = np.clip(np.array(corners), 0, np.maximum(0, np.subtract(picture, size)))
    return np.hstack([start, start + np.array(size)])


def _overlap(frames: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Pixels that each frame (n, 4) shares with the others (m, 4), summed over them."""
    one, other = frames[:, None], others[None]
    start, end = np.maximum(one, other)[..., :2], np.minimum(one, other)[..., 2:]
    shared: np.ndarray = np.clip(end - start, 0, None).prod(axis=-1).sum(axis=-1)
    return shared
