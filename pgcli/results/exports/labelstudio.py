"""Exports Label Studio tasks with predictions: masks, boxes in percent, and answers as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pgcli.boxes import parse_region
from pgcli.inputs.options import REGION
from pgcli.labels.labelstudio import HAS_BOXES, PROMPT, TEXT_PROMPT
from pgcli.output.reader import Row
from pgcli.records import Box
from pgcli.results.exports.rows import (
    Export,
    ExportEntry,
    ExportFormat,
    box_sides,
    is_text_row,
    outline,
    row_boxes,
)
from pgcli.rows import json_text


def write_label_studio(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
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
    rows_by_model = sorted(entry.rows, key=lambda row: str(row["model"]))
    for model, rows in groupby(rows_by_model, key=lambda row: str(row["model"])):
        results = [result for row in rows for result in row_results(row, entry, export)]
        for number, result in enumerate(results, start=1):
            result["id"] = f"{entry.number}-{number}"
        predictions.append({"model_version": model, "result": results})
    data: dict[str, Any] = {"image": address, "id": entry.rows[0]["id"]}
    if export.stats.has_boxes and all(map(is_text_row, entry.rows)):
        data[HAS_BOXES] = False
    for name, is_text in ((PROMPT, False), (TEXT_PROMPT, True)):
        prompts = {row["prompt"] for row in entry.rows if is_text_row(row) == is_text}
        if len(prompts) == 1:
            (data[name],) = prompts
    return {"data": data, "predictions": predictions}


def row_results(row: Row, entry: ExportEntry, export: Export) -> Iterator[dict[str, Any]]:
    """A row's text, or its boxes; a box with a mask is a polygon instead of a rectangle."""
    if is_text_row(row):
        value: dict[str, Any] = {"text": [row["answer"] or ""]}
        shared: dict[str, Any] = {}
        if region := row_region(row):
            shared, value = size_fields(entry), {**place(region, entry), **value}
        yield {
            "from_name": "answer",
            "to_name": "image",
            "type": "textarea",
            **shared,
            "value": value,
        }
    for box, mask in row_boxes(row):
        export.counts.boxes += 1
        points_n2 = 100 * outline(box, mask) / (entry.width, entry.height)
        kind = "polygonlabels" if len(points_n2) else "rectanglelabels"
        value = {"points": points_n2.tolist()} if len(points_n2) else place(box, entry)
        yield {
            "from_name": "mask" if len(points_n2) else "label",
            "to_name": "image",
            "type": kind,
            **size_fields(entry),
            "score": box.score,
            "value": {**value, kind: [box.label]},
        }


def row_region(row: Row) -> Box | None:
    """The region of a row as a box, or None."""
    try:
        return Box("", *parse_region(row.get(REGION)))
    except ValueError:
        return None


def size_fields(entry: ExportEntry) -> dict[str, int]:
    """The size of the image, the unit of regions in percent."""
    return {
        "original_width": entry.width,
        "original_height": entry.height,
        "image_rotation": 0,
    }


def place(box: Box, entry: ExportEntry) -> dict[str, Any]:
    """The box in percent of the image's sides."""
    left, top, width, height = box_sides(box)
    return {
        "x": 100 * left / entry.width,
        "y": 100 * top / entry.height,
        "width": 100 * width / entry.width,
        "height": 100 * height / entry.height,
        "rotation": 0,
    }


LABEL_STUDIO = ExportFormat(
    write_label_studio,
    writes_paths=True,
    options=frozenset({"label", "label_file", "image_prefix"}),
)
