"""Positions the labels of boxes: inside the image, near their boxes, without overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

STEPS = 4  # label heights around a box that are tried before the whole image is
GRID = 32  # positions in x and y of the image that are tried at most
MAX_COVERED = 1 / 3  # of the label's own box, if another position is free


class PixelBox(NamedTuple):
    """A box in whole pixels; right and bottom are exclusive."""

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


def layout_labels(
    boxes: Sequence[PixelBox],
    sizes: Sequence[tuple[int, int] | None],
    image_size: tuple[int, int],
) -> list[PixelBox | None]:
    """The position of each box's label of `sizes` (width, height), None where the size is.

    A label overlaps another only if the image has no other position for it.
    """
    occupied = np.empty((0, 4), dtype=np.int64)
    labels: list[PixelBox | None] = []
    for box, size in zip(boxes, sizes, strict=True):
        label = None if size is None else _position(box, size, image_size, occupied)
        labels.append(label)
        if label is not None:
            occupied = np.vstack([occupied, label])
    return labels


def touches(one: PixelBox, other: PixelBox) -> bool:
    """Whether the boxes overlap or share a part of an edge."""
    across = one.left <= other.right and other.left <= one.right
    return across and one.top <= other.bottom and other.top <= one.bottom


def _position(
    box: PixelBox, size: tuple[int, int], image_size: tuple[int, int], occupied: np.ndarray
) -> PixelBox:
    near = _inside(list(_corners_near(box, size)), size, image_size)
    overlaps = _overlap(near, occupied)
    free = near[overlaps == 0]
    if not len(free):
        grid = _inside(_grid(image_size, size), size, image_size)
        free = grid[_overlap(grid, occupied) == 0]
        distance = np.abs(free[:, :2] - near[0, :2]).sum(axis=1)
        free = free[np.argsort(distance, kind="stable")]
    if not len(free):
        return PixelBox(*near[np.argmin(overlaps)].tolist())
    covered = _overlap(free, np.array([box])) / max(1, box.width * box.height)
    return PixelBox(*free[np.argmax(covered <= MAX_COVERED)].tolist())  # argmax: else the first


def _corners_near(box: PixelBox, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Left top corners along the edges of the box, then further away; the best first."""
    width, height = size
    for step in range(STEPS):
        offset = step * height
        for left in (box.left, box.right - width):
            yield left, box.top - height - offset
            yield left, box.top + offset
            yield left, box.bottom + offset
            yield left, box.bottom - height - offset
        for left in (box.right, box.left - width):
            yield left, box.top + offset


def _grid(image_size: tuple[int, int], size: tuple[int, int]) -> list[tuple[int, int]]:
    step_x = max(1, size[0] // 4, image_size[0] // GRID)
    step_y = max(1, size[1], image_size[1] // GRID)
    return [
        (x, y) for y in range(0, image_size[1], step_y) for x in range(0, image_size[0], step_x)
    ]


def _inside(
    corners: Sequence[tuple[int, int]], size: tuple[int, int], image_size: tuple[int, int]
) -> np.ndarray:
    """Boxes (n, 4) of this size with these left top corners, moved into the image."""
    start = np.clip(np.array(corners), 0, np.maximum(0, np.subtract(image_size, size)))
    return np.hstack([start, start + np.array(size)])


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Pixels that each box (n, 4) shares with the others (m, 4), summed over them."""
    one, other = boxes[:, None], others[None]
    start, end = np.maximum(one, other)[..., :2], np.minimum(one, other)[..., 2:]
    shared: np.ndarray = np.clip(end - start, 0, None).prod(axis=-1).sum(axis=-1)
    return shared
