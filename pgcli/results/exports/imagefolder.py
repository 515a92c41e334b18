"""Exports a folder that the datasets library reads as an imagefolder, with metadata.jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.results.exports.entry import (
    Export,
    ExportEntry,
    ExportFormat,
    without_leading_dot,
)
from pgcli.results.exports.image_files import store_image
from pgcli.results.exports.rows import box_sides
from pgcli.rows import json_text

#: The words of names that `datasets` takes for a split, a shard, a hidden file or an archive.
SPECIAL = re.compile(
    r"(?:^|(?<=[-._ 0-9]))"
    r"(?:train|training|validation|valid|dev|val|test|testing|eval|evaluation)(?=[-._ 0-9]|$)"
    r"|-[0-9]{5}-of(?=-[0-9]{5})|^_(?=_)|:(?=:)"
)


def write_imagefolder(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Fill the folder, without unreadable images."""
    with open(target / "metadata.jsonl", "w", encoding="utf-8") as file:
        for entry in entries:
            if not store_image(target, entry, export):
                continue
            file.write(json_text(metadata(entry, export)) + "\n")
            export.counts.images += 1


def metadata(entry: ExportEntry, export: Export) -> dict[str, Any]:
    """The image's line: its text, and its boxes if a row has boxes.

    `categories` are indices into the list of all labels, `labels` their names.
    """
    line: dict[str, Any] = {"file_name": entry.name}
    if texts := entry.texts:
        line["text"] = texts[0]
    if export.labels or len(texts) < len(entry.rows):
        boxes = [box for box, _ in entry.boxes()]
        export.counts.boxes += len(boxes)
        line["objects"] = {
            "bbox": [[float(side) for side in box_sides(box)] for box in boxes],
            "categories": [export.labels[box.label] for box in boxes],
            "labels": [box.label for box in boxes],
            "scores": [box.score for box in boxes],
        }
    return line


def imagefolder_name(part: str, is_folder: bool) -> str:
    """The name with a `~` after every word that `datasets` would interpret.

    It makes splits of folders and files with such names, and drops their metadata.
    """
    return SPECIAL.sub(r"\g<0>~", without_leading_dot(part, is_folder))


IMAGEFOLDER = ExportFormat(
    write_imagefolder,
    is_folder=True,
    max_one="texts",
    reads_images=True,
    suffixes=frozenset({".jsonl"}),
    sanitize_name=imagefolder_name,
    options=frozenset({"label", "label_file", "store_images"}),
)
