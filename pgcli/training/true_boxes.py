"""Turns the boxes of labelled rows into answers, on the upright image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgcli.images import ImageHeader, Size
from pgcli.labelled_rows import Example, stated_size
from pgcli.parsing import detection_text, has_locations
from pgcli.records import Box, Item
from pgcli.results.frames import (
    OUTSIDE_PIXELS,
    Drawing,
    Frame,
    SizesDifferError,
    frame_notes,
    settled_frames,
    turned_box,
    whole_header,
)
from pgcli.stores.urls import url_scheme
from pgcli.training.rows import TargetText


class UnusableRow(Exception):
    """An unusable row, with the reason."""


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row with boxes on an image with an EXIF rotation.

    All rows of its source together show whether boxes refer to stored or upright pixels. `finish`
    makes the target from the example with upright boxes.
    """

    item: Item
    fields: Mapping[str, Any]
    example: Example
    header: ImageHeader
    finish: Callable[[Example], TargetText | None]

    def target(self, frame: Frame | None) -> TargetText | None:
        """The target, with boxes from this frame made upright. Raises UnusableRow."""
        header = self.header if frame is Frame.STORED else self.header._replace(orientation=1)
        return self.finish(upright_example(self.example, self.fields, header))


def settled_rows(rows: Sequence[DrawnRow]) -> tuple[list[Frame | None], list[str]]:
    """The frame of each row of a source, and notes on rows that were not drawn upright.

    Raises UsageError if some boxes refer to stored images and others to upright ones.
    """
    drawings: dict[tuple[str, tuple[int, int] | None], Drawing] = {}  # tables have a box per row
    keys = [(row.item.id, stated_size(row.fields)) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        boxes = [box.corners for box in row.example.boxes or ()]
        known = drawings.setdefault(key, Drawing(row.item.id, key[1], [], row.header))
        drawings[key] = replace(known, boxes=[*known.boxes, *boxes])
    by_key = dict(zip(drawings, settled_frames([*drawings.values()]), strict=True))
    is_shown = {Frame.STORED, Frame.SWAPPED}.intersection(by_key.values())
    notes = frame_notes([id_ for id_, _ in by_key], [*by_key.values()]) if is_shown else ()
    return [by_key[key] for key in keys], [*notes]


def needs_header(example: Example, fields: Mapping[str, Any]) -> bool:
    """Whether the answer of an example depends on the size or the orientation of its image."""
    has_locations_too = any(map(has_locations, example.answers)) and stated_size(fields) is not None
    return bool(example.boxes) and (has_locations_too or not has_answers(example))


def has_answers(example: Example) -> bool:
    """Whether a row has an answer with text."""
    return any(map(str.strip, example.answers))


def upright_example(example: Example, fields: Mapping[str, Any], header: ImageHeader) -> Example:
    """The example with its boxes upright, also in its answers; without an answer, boxes become it.

    Raises UnusableRow for boxes outside of the image.
    """
    boxes, answers = example.boxes or (), example.answers
    masks = fields.get("masks")
    codes = [mask and mask.get("codes") for mask in (masks if isinstance(masks, list) else ())]
    if header.orientation != 1:
        boxes = tuple(turned_box(box, header) for box in boxes)
        if any(codes):
            raise UnusableRow("Its mask codes refer to the image before its EXIF rotation.")
        text = boxes_answer(boxes, codes, header.size)
        answers = tuple(text if has_locations(answer) else answer for answer in answers)
    if not has_answers(example):
        answers = (boxes_answer(boxes, codes, header.size),)
    return replace(example, boxes=boxes, answers=answers)


def boxes_answer(boxes: Sequence[Box], codes: Sequence[Any], size: tuple[int, int]) -> str:
    """The answer with these boxes. Raises UnusableRow for a box outside of its image."""
    width, height = size
    for box in boxes:
        corners = f"{box.xmin:g}, {box.ymin:g}, {box.xmax:g}, {box.ymax:g}"
        if box.xmin >= box.xmax or box.ymin >= box.ymax:
            raise UnusableRow(f"The box {box.label!r} has no area: {corners}.")
        is_left = min(box.xmin, box.ymin) < -OUTSIDE_PIXELS
        if is_left or box.xmax > width + OUTSIDE_PIXELS or box.ymax > height + OUTSIDE_PIXELS:
            raise UnusableRow(
                f"The box {box.label!r} is outside of its image of {width} x {height}: {corners}."
            )
    return detection_text(boxes, codes, width=width, height=height)


def image_header(item: Item, fields: Mapping[str, Any]) -> ImageHeader:
    """The header of an item's image, whose size must match the row's, upright or stored.

    For an image at a URL it has the row's size. Raises ImageError and UnusableRow.
    """
    stated = stated_size(fields)
    if item.data is None and item.path is not None and url_scheme(item.path):
        if stated is None:
            raise UnusableRow("It has boxes in pixels, but no width and height of its image.")
        return ImageHeader("", Size(*stated))
    header = whole_header(item)
    try:
        Drawing(item.id, stated, (), header).frame()
    except SizesDifferError as problem:
        raise UnusableRow(
            f"Its width and height are {problem.stated}, but its image has {problem.actual}."
        ) from problem
    return header
