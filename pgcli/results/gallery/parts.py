"""A large page: columns of its rows in the page, boxes and images in a folder beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pgcli.boxes import CORNERS
from pgcli.results.gallery.thumbnails import ThumbnailEntry
from pgcli.results.pages.sanitize import as_list

MAX_ROWS_IN_PAGE = 4_000  # more rows are kept in a folder beside the page
ROWS_PER_PART = 200
IMAGES_PER_PART = 24  # a screen needs a few parts

PageRow = Mapping[str, Any]


def row_columns(rows: Sequence[PageRow], labels: Sequence[str]) -> dict[str, Any]:
    """The columns of the rows, for search, filters and sorting; of boxes labels and confidences.

    A column is a list of values, or `{"all": value}` where all rows have the same.
    """
    label_numbers = {label: number for number, label in enumerate(labels)}
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row if name != "masks"):
        values = [row.get(name) for row in rows]
        if name == "boxes":
            values = [box_summaries(boxes, label_numbers) for boxes in values]
        elif name == "image":
            values = [None if row.get("image") == row["id"] else row.get("image") for row in rows]
        first = values[0]
        is_constant = isinstance(first, str | int | float) and all(v == first for v in values)
        columns[name] = {"all": first} if is_constant else values
    return columns


def box_summaries(boxes: object, label_numbers: Mapping[str, int]) -> list[list[Any]] | None:
    """The label's number, the confidence and the score of each valid box; None without boxes."""
    summaries = [
        [label_numbers.get(str(box.get("label")), -1), box.get("confidence"), box.get("score")]
        for box in as_list(boxes)
        if isinstance(box, Mapping) and all(is_number(box.get(corner)) for corner in CORNERS)
    ]
    return summaries if as_list(boxes) else None


def is_number(value: object) -> bool:
    """Whether JavaScript reads the JSON of the value as a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_parts(
    folder: Path, key: str, rows: Sequence[PageRow], entries: Iterable[ThumbnailEntry]
) -> int:
    """Write the boxes and masks of the rows, and the images; returns the size in bytes."""
    images = enumerate(image_parts(entries))
    parts = chain(row_parts(rows), ((f"images-{number}", chunk) for number, chunk in images))
    return sum(write_script(folder, key, name, values) for name, values in parts)


def image_parts(entries: Iterable[ThumbnailEntry]) -> Iterator[list[ThumbnailEntry]]:
    """The entries of the images, so many at a time."""
    remaining = iter(entries)
    return iter(lambda: list(islice(remaining, IMAGES_PER_PART)), [])


def row_parts(rows: Sequence[PageRow]) -> Iterator[tuple[str, list[Any]]]:
    """The parts with boxes, by name."""
    for first in range(0, len(rows), ROWS_PER_PART):
        part = rows[first : first + ROWS_PER_PART]
        boxes = [
            [row["boxes"], row.get("masks")] if as_list(row.get("boxes")) else None for row in part
        ]
        if any(boxes):
            yield f"rows-{first // ROWS_PER_PART}", boxes


def write_script(folder: Path, key: str, name: str, values: object) -> int:
    """Write a part as a script that passes a JSON text to the page; nothing in it is code."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))  # ASCII without line breaks
    literal = text.replace("\\", "\\\\").replace("'", "\\'")
    script = f"pgcliPart('{key}', '{name}', '{literal}');\n"
    return (folder / f"{name}.js").write_bytes(script.encode("ascii"))
