"""Label Studio's tasks with predictions: masks, boxes in percent, and answers as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pgcli.records import BOX_TASKS
from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Found, Row, Wanted, found_in


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Write the file: a task for each picture."""
    with open(target, "w", encoding="utf-8") as file:
        file.write("[")
        for entry in entries:
            file.write(",\n" if wanted.tally.pictures else "\n")
            file.write(json_text(task(entry, wanted)))
            wanted.tally.pictures += 1
        file.write("\n]\n")


def task(entry: Entry, wanted: Wanted) -> dict[str, Any]:
    """A picture with a prediction of each model that was asked about it."""
    is_prefixed = wanted.prefix and not entry.is_address
    address = wanted.prefix + quote(entry.image) if is_prefixed else entry.image
    predictions = []
    for model, rows in groupby(sorted(entry.rows, key=model_of), key=model_of):
        results = [one for row in rows for one in results_of(row, entry, wanted)]
        for number, one in enumerate(results, start=1):
            one["id"] = f"{entry.number}-{number}"
        predictions.append({"model_version": model, "result": results})
    return {"data": {"image": address, "id": entry.rows[0]["id"]}, "predictions": predictions}


def model_of(row: Row) -> str:
    """The model that answered."""
    return str(row["model"])


def results_of(row: Row, entry: Entry, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """A row's text, or its boxes; one with a mask is the mask, as a region is one or the other."""
    if row["task"] not in BOX_TASKS:
        value: dict[str, Any] = {"text": [row["answer"] or ""]}
        yield {"from_name": "answer", "to_name": "image", "type": "textarea", "value": value}
    for found in found_in(row):
        wanted.tally.boxes += 1
        brush = painted(found)
        yield {
            "from_name": "mask" if brush else "label",
            "to_name": "image",
            "type": "brushlabels" if brush else "rectanglelabels",
            "original_width": entry.width,
            "original_height": entry.height,
            "image_rotation": 0,
            "score": found.score,
            "value": brush or rectangle(found, entry),
        }


def rectangle(found: Found, entry: Entry) -> dict[str, Any]:
    """The box in percent of the picture's sides."""
    return {
        "x": 100 * found.left / entry.width,
        "y": 100 * found.top / entry.height,
        "width": 100 * found.width / entry.width,
        "height": 100 * found.height / entry.height,
        "rotation": 0,
        "rectanglelabels": [found.label],
    }


def painted(found: Found) -> dict[str, Any] | None:
    """The mask as a brush would have painted it; None where there is none."""
    if found.mask is None:
        return None
    from pgcli.views.exports.brush import brush

    runs = brush(found.mask)
    return {"format": "rle", "rle": list(runs), "brushlabels": [found.label]} if runs else None


LABEL_STUDIO = Format(write, takes=frozenset({"labels", "root", "image_prefix"}))
