"""Rows of a result file on their way into an export: checked and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pgcli.cli.result_files.image_locator import image_key
from pgcli.errors import UsageError
from pgcli.records import BOX_TASKS, Rle
from pgcli.rows import json_safe
from pgcli.views.exports.entry import Row, row_boxes

MAX_PROMPTS_SHOWN = 5  # prompts that a message names
TEXT_COLUMNS = ("id", "image", "task", "prompt")
#: Sides of pictures and corners of boxes are within it, and a difference of two is a number.
MAX_COORDINATE = 2**31


@dataclass
class RowStats:
    """What the rows of a file are: how many, how many of them errors or about another prompt.

    `answers` and `texts` are the most that any picture has; `looks` says that some row was to have
    boxes, `masks` that some box has a mask. `outside` boxes have no area in their picture.
    """

    rows: int = 0
    errors: int = 0
    others: int = 0
    answers: int = 0
    texts: int = 0
    outside: int = 0
    looks: bool = False
    masks: bool = False
    labels: set[str] = field(default_factory=set)
    prompts: dict[str, None] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)

    @property
    def good(self) -> int:
        """How many rows are left to be written."""
        return self.rows - self.errors - self.others


def collect_stats(rows: Iterable[Row], prompt: str | None) -> RowStats:
    """What the rows are, those of one prompt if it is given. Raises UsageError for a damaged one.

    Takes memory for their labels, not for the rows.
    """
    found = RowStats()
    for _, same in groupby(valid_rows(rows, prompt, found), key=image_key):
        answers = texts = 0
        for row in same:
            answers += 1
            texts += row["task"] not in BOX_TASKS
            found.looks |= row["task"] in BOX_TASKS or bool(row["boxes"])
            inside = list(row_boxes(row))
            found.outside += len(row["boxes"]) - len(inside)
            found.masks |= any(one.mask is not None for one in inside)
            found.labels.update(box["label"] for box in row["boxes"])
            found.columns |= dict.fromkeys(row)
        found.answers, found.texts = max(found.answers, answers), max(found.texts, texts)
    return found


def valid_rows(rows: Iterable[Row], prompt: str | None, found: RowStats) -> Iterator[Row]:
    """The rows that are to be written, all of them counted and checked, in what UTF-8 can hold."""
    for row in map(json_safe, rows):
        found.rows += 1
        if row["error"] is not None:
            found.errors += 1
            continue
        if wrong := find_row_error(row):
            raise UsageError(
                f"row {found.rows:,} is no row of an answer: {wrong}",
                hint="name a file as caption, ask, detect, segment or ocr wrote it",
            )
        if len(found.prompts) < MAX_PROMPTS_SHOWN:
            found.prompts[row["prompt"]] = None
        if prompt is not None and row["prompt"] != prompt:
            found.others += 1
            continue
        yield row


def find_row_error(row: Row) -> str:
    """What keeps a row without an error from being exported, nothing for one of ours."""
    for name in TEXT_COLUMNS:
        if not isinstance(row[name], str):
            return f"{name} is no text"
    if not isinstance(row["answer"], str | None):
        return "answer is no text"
    sides = (row.get("width"), row.get("height"))
    if not all(is_number(side) and isinstance(side, int) and side > 0 for side in sides):
        return "width and height are no sizes"
    boxes = row["boxes"]
    if not isinstance(boxes, list) or not all(map(is_box, boxes)):
        return "boxes are no list of boxes"
    try:
        for mask in row.get("masks") or ():
            if mask is not None and mask["rle"] is not None:
                check_mask(mask["rle"], sides)
    except (ValueError, TypeError, KeyError, AttributeError):
        return "masks are no list of masks"
    return ""


def is_box(box: Any) -> bool:
    """Whether it is a box with its four numbers, and a score or none."""
    if not isinstance(box, dict) or not isinstance(box.get("label"), str):
        return False
    corners = [box.get(name) for name in ("xmin", "ymin", "xmax", "ymax")]
    numbers = corners if box.get("score") is None else [*corners, box["score"]]
    return all(map(is_number, numbers))


def is_number(value: Any) -> bool:
    """Whether it is a number that can be a place in a picture; NaN is below and above nothing."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and -MAX_COORDINATE <= value <= MAX_COORDINATE


def check_mask(rle: Any, sides: tuple[Any, ...]) -> None:
    """Raise ValueError where the runs are none, or of another size than the picture."""
    from pgcli.rle import area

    if tuple(rle["size"]) != sides[::-1]:
        raise ValueError("another size")
    area(Rle(sides[::-1], rle["counts"]))
