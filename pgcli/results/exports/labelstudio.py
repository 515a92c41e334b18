"""Exports Label Studio tasks with predictions: masks, boxes in percent, and answers as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pgcli.inputs.options import REGION
from pgcli.output.reader import Row
from pgcli.records import BOX_TASKS
from pgcli.regions import parse_region
from pgcli.results.exports.entry import Export, ExportEntry, ExportFormat
from pgcli.results.exports.rows import ExportBox, row_boxes
from pgcli.rows import json_text

#: Set to false in the data of a task whose image nobody searched for boxes.
HAS_BOXES = "has_boxes"


def write(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file: a task for each image."""
    with open(target, "w", encoding="utf-8") as file:
        file.write("[")
        for entry in entries:
            file.write(",\n" if export.counts.images else "\n")
            file.write(json_text(task(entry, export)))
            export.counts.images += 1
        file.write("\n]\n")


def task(entry: ExportEntry, export: Export) -> dict[str, Any]:
    """An image with one prediction for each model."""
    prefix = None if entry.is_address else export.options.image_prefix
    address = prefix + quote(entry.image) if prefix else entry.image
    predictions = []
    for model, rows in groupby(sorted(entry.rows, key=model_of), key=model_of):
        results = [result for row in rows for result in row_results(row, entry, export)]
        for number, result in enumerate(results, start=1):
            result["id"] = f"{entry.number}-{number}"
        predictions.append({"model_version": model, "result": results})
    data: dict[str, Any] = {"image": address, "id": entry.rows[0]["id"]}
    if export.stats.has_boxes and not any(row["task"] in BOX_TASKS for row in entry.rows):
        data[HAS_BOXES] = False
    return {"data": data, "predictions": predictions}


def model_of(row: Row) -> str:
    """The row's model, the predictions' version."""
    return str(row["model"])


def row_results(row: Row, entry: ExportEntry, export: Export) -> Iterator[dict[str, Any]]:
    """A row's text, or its boxes; a box with a mask is a polygon instead of a rectangle."""
    if row["task"] not in BOX_TASKS:
        value: dict[str, Any] = {"text": [row["answer"] or ""]}
        shared: dict[str, Any] = {}
        if region := row_region(row):
            shared, value = stated_size(entry), {**place(region, entry), **value}
        yield {
            "from_name": "answer",
            "to_name": "image",
            "type": "textarea",
            **shared,
            "value": value,
        }
    for box in row_boxes(row):
        export.counts.boxes += 1
        outline = polygon_region(box, entry)
        yield {
            "from_name": "mask" if outline else "label",
            "to_name": "image",
            "type": "polygonlabels" if outline else "rectanglelabels",
            **stated_size(entry),
            "score": box.score if box.confidence is None else box.confidence,
            "value": outline or {**place(box, entry), "rectanglelabels": [box.label]},
        }


def row_region(row: Row) -> ExportBox | None:
    """The region that the text of a row is about, as a box; None for the whole image."""
    try:
        left, top, right, bottom = parse_region(row.get(REGION))
    except ValueError:
        return None
    return ExportBox("", left, top, right - left, bottom - top, None, None)


def stated_size(entry: ExportEntry) -> dict[str, int]:
    """The size of the image, of which regions are percentages."""
    return {
        "original_width": entry.width,
        "original_height": entry.height,
        "image_rotation": 0,
    }


def place(box: ExportBox, entry: ExportEntry) -> dict[str, Any]:
    """The box in percent of the image's sides."""
    return {
        "x": 100 * box.left / entry.width,
        "y": 100 * box.top / entry.height,
        "width": 100 * box.width / entry.width,
        "height": 100 * box.height / entry.height,
        "rotation": 0,
    }


def polygon_region(box: ExportBox, entry: ExportEntry) -> dict[str, Any] | None:
    """The outline of the mask in percent of the image's sides, or None without a mask."""
    points_n2 = 100 * box.outline() / (entry.width, entry.height)
    value = {"points": points_n2.tolist(), "polygonlabels": [box.label]}
    return value if len(points_n2) else None


LABEL_STUDIO = ExportFormat(write, writes_paths=True, options=frozenset({"labels", "image_prefix"}))
