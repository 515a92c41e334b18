"""Reads the values of a row of the truth: answers, boxes and masks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pgcli.box_filter import box_of, number
from pgcli.errors import UsageError
from pgcli.records import Box, Rle
from pgcli.rle import area

CORNERS = ("xmin", "ymin", "xmax", "ymax")
MAX_VALUE_CHARACTERS = 200  # of a value that rows are grouped by


def parsed(value: Any) -> Any:
    """The value, or that of its JSON text, as CSV has lists."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def read_answers(value: Any) -> tuple[str, ...]:
    """The true answers: a text, a list of texts, or of objects with `answer`, as VQA has them."""
    value = parsed(value)
    if isinstance(value, Mapping):
        value = value.get("answer")
    if isinstance(value, list | tuple):
        return tuple(text for one in value for text in read_answers(one))
    return () if value is None else (str(value),)


def read_boxes(row: Mapping[str, Any], where: str) -> tuple[Box, ...] | None:
    """The boxes of a row, in `boxes` or in its own corners; None without. Raises UsageError.

    Columns of corners that are all empty are of an image without boxes.
    """
    value = parsed(row.get("boxes"))
    if value is None or value == "":
        if any(name not in row for name in CORNERS):
            return None
        if all(row[name] in (None, "") for name in CORNERS):
            return ()
        corners = {name: as_number(row[name]) for name in CORNERS}
        value = [{"label": str(row.get("label", "")), **corners}]
    boxes = [box_of(one) for one in value] if isinstance(value, list | tuple) else [None]
    if None in boxes:
        raise UsageError(
            f"{where}: 'boxes' are not boxes",
            hint="a box is {label, xmin, ymin, xmax, ymax} in pixels",
        )
    return tuple(box for box in boxes if box is not None)


def as_number(value: Any) -> float | None:
    """The value as a number; None for anything else."""
    with suppress(TypeError, ValueError):
        return number(float(value))
    return None


def read_masks(value: Any, where: str) -> tuple[Rle | None, ...] | None:
    """The masks of a row, of result files or in COCO's form; None without. Raises UsageError."""
    value = parsed(value)
    if value is None or value == "":
        return None
    try:
        return tuple(map(mask_of, value))
    except (TypeError, KeyError, ValueError, AttributeError) as problem:
        raise UsageError(
            f"{where}: 'masks' are not masks",
            hint="a mask is {size, counts} in COCO's compressed run-length encoding",
        ) from problem


def mask_of(value: Any) -> Rle | None:
    """The run lengths of a mask. Raises ValueError and others for a value that is not one."""
    runs = value.get("rle", value) if value is not None else None
    if runs is None:
        return None
    height, width = runs["size"]
    mask = Rle((int(height), int(width)), str(runs["counts"]))
    area(mask)
    return mask


def group_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that rows can be grouped by; a long text is cut."""
    return {
        name: value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value
        for name, value in row.items()
        if isinstance(value, str | int | float | bool)
    }
