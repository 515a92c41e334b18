"""Exports COCO JSON: images, annotations and categories, or captions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pgcli.rows import json_text
from pgcli.views.exports.entry import ExportBox, ExportEntry, ExportFormat, ExportSettings


def write(target: Path, entries: Iterable[ExportEntry], options: ExportSettings) -> None:
    """Write the file; images have the names of the rows."""
    write_document(target, ((entry, entry.image) for entry in entries), options)


def write_document(
    target: Path, entries: Iterable[tuple[ExportEntry, str]], options: ExportSettings
) -> None:
    """Write entries, each with its file name, keeping one in memory at a time.

    Rows of tasks with boxes make an instances file, others a captions file. Annotations are first
    written to a temporary file, since COCO lists all images before them.
    """
    with (
        open(target, "w", encoding="utf-8") as file,
        tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as pending,
    ):
        file.write('{"info":{"description":"made by pgcli"},"images":[')
        for entry, name in entries:
            file.write(",\n" if options.counts.images else "\n")
            image = {"id": entry.number, "file_name": name}
            file.write(json_text(image | {"width": entry.width, "height": entry.height}))
            options.counts.images += 1
            annotations = (
                instances(entry, options) if options.has_boxes else captions(entry, options)
            )
            for one in annotations:
                pending.write(",\n" if one["id"] > 1 else "\n")
                pending.write(json_text(one))
        file.write('\n],"annotations":[')
        pending.seek(0)
        shutil.copyfileobj(pending, file)
        file.write("\n]")
        if options.has_boxes:  # with categories, pycocotools expects one in every annotation
            categories = [{"id": index + 1, "name": name} for name, index in options.labels.items()]
            file.write(f',"categories":{json_text(categories)}')
        file.write("}\n")


def captions(entry: ExportEntry, options: ExportSettings) -> Iterator[dict[str, Any]]:
    """The image's answers as COCO captions, each with its prompt."""
    for row in entry.rows:
        options.counts.captions += 1
        ids = {"id": options.counts.captions, "image_id": entry.number}
        yield ids | {"caption": row["answer"] or "", "prompt": row["prompt"]}


def instances(entry: ExportEntry, options: ExportSettings) -> Iterator[dict[str, Any]]:
    """The image's boxes as COCO instances."""
    for box in entry.boxes():
        options.counts.boxes += 1
        yield annotation(box, entry, options)


def annotation(box: ExportBox, entry: ExportEntry, options: ExportSettings) -> dict[str, Any]:
    """A box as a COCO annotation; with a mask, the area is the mask's."""
    made: dict[str, Any] = {
        "id": options.counts.boxes,
        "image_id": entry.number,
        "category_id": options.labels[box.label] + 1,  # 0 is the background
        "bbox": [box.left, box.top, box.width, box.height],
        "area": round(box.width * box.height, 2),
        "iscrowd": 0,
        "score": box.score,
    }
    if box.mask is not None:
        from pgcli.rle import area

        made["segmentation"] = {"size": list(box.mask.size), "counts": box.mask.counts}
        made["area"] = area(box.mask)
    return made


COCO = ExportFormat(write, options=frozenset({"labels", "root"}))
