"""Boxes of labelled rows as answers: those of the upright image, and within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from pgcli.examples import Example, parsed
from pgcli.images import ImageHeader, Size
from pgcli.inputs.paths import url_scheme
from pgcli.parsing import detection_text, has_locations
from pgcli.records import Box, Item
from pgcli.results.frames import (
    OUTSIDE_PIXELS,
    TURNED,
    Drawing,
    SizesDifferError,
    turned_box,
    whole_header,
)


class UnusableRow(Exception):
    """A row that cannot be trained on, with the reason."""


def upright_example(item: Item, example: Example, fields: Mapping[str, Any]) -> Example:
    """The example with boxes of the upright image, also in its answers; where it has none, the
    boxes are the answer, which have to be in their image. Raises ImageError and UnusableRow.
    """
    boxes, answers = example.boxes or (), example.answers
    has_answers = any(map(str.strip, answers))
    if not boxes or (has_answers and not (row_size(fields) and any(map(has_locations, answers)))):
        return replace(example, answers=answers if has_answers else ("",))
    masks = parsed(fields.get("masks"))
    masks = masks if isinstance(masks, list) else []
    header = upright_header(item, fields, boxes)
    if header.orientation != 1:
        boxes = tuple(turned_box(box, header) for box in boxes)
        if any(mask and mask.get("codes") for mask in masks):
            raise UnusableRow("The codes of its masks are those of the image as it is stored.")
        text = box_text(boxes, masks, header.size)
        answers = tuple(text if has_locations(answer) else answer for answer in answers)
    if not has_answers:
        answers = (box_text(boxes, masks, header.size),)
    return replace(example, boxes=boxes, answers=answers)


def row_size(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    """The `width` and `height` of a row; None without."""
    with suppress(TypeError, ValueError):
        return int(fields.get("width") or ""), int(fields.get("height") or "")
    return None


def box_text(boxes: Sequence[Box], masks: Sequence[Any], size: tuple[int, int]) -> str:
    """The answer that has the boxes. Raises UnusableRow for one that is not in its image."""
    width, height = size
    for box in boxes:
        corners = f"{box.xmin:g}, {box.ymin:g}, {box.xmax:g}, {box.ymax:g}"
        if box.xmin >= box.xmax or box.ymin >= box.ymax:
            raise UnusableRow(f"The box {box.label!r} has no area: {corners}.")
        is_left = min(box.xmin, box.ymin) < -OUTSIDE_PIXELS
        if is_left or box.xmax > width + OUTSIDE_PIXELS or box.ymax > height + OUTSIDE_PIXELS:
            raise UnusableRow(
                f"The box {box.label!r} is not in its image of {width} x {height}: {corners}."
            )
    return detection_text([asdict(box) for box in boxes], masks, width=width, height=height)


def upright_header(item: Item, fields: Mapping[str, Any], boxes: Sequence[Box] = ()) -> ImageHeader:
    """The size of the upright image, and the orientation that the boxes have to be turned by.

    A row's `width` and `height` have to be those of the upright image or, for boxes drawn on it, of
    the stored one. They are taken as they are for an image at an address. Raises ImageError and
    UnusableRow.
    """
    stated = row_size(fields)
    if item.data is None and item.path is not None and url_scheme(item.path):
        if stated is None:
            raise UnusableRow("It has pixels, and no width and height of its image.")
        return ImageHeader("", Size(*stated))
    header = whole_header(item)
    corners = [(box.xmin, box.ymin, box.xmax, box.ymax) for box in boxes]
    try:
        frame = Drawing(item.id, stated, corners, header).frame()
    except SizesDifferError as problem:
        raise UnusableRow(
            f"Its width and height are {problem.stated}, and its image has {problem.actual}."
        ) from problem
    return header if frame in TURNED else header._replace(orientation=1)
