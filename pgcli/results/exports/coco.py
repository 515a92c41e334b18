"""Exports COCO JSON: images, annotations and categories, or captions."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from pgcli.records import BOX_TASKS
from pgcli.results.exports.entry import ExportBox, ExportEntry, ExportFormat, ExportSettings, Row
from pgcli.rows import json_text


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
        info = {"description": "made by pgcli"}
        if options.has_boxes and options.prompt is not None:
            info["prompt"] = options.prompt  # which `pgcli import` gives its rows
        file.write(f'{{"info":{json_text(info)},"images":[')
        for entry, name in entries:
            file.write(",\n" if options.counts.images else "\n")
            image = {"id": entry.number, "file_name": name}
            image |= {"width": entry.width, "height": entry.height}
            id_ = entry.rows[0]["id"]
            file.write(json_text(image if id_ == name else image | {"row_id": id_}))
            options.counts.images += 1
            annotate = instance_annotations if options.has_boxes else caption_annotations
            for one in annotate(entry, options):
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


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of the file for rows without errors; rows of an image follow each other."""
    prompts = {row["prompt"] for row in rows}
    labels = sorted({box["label"] for row in rows for box in row["boxes"]})
    has_boxes = any(row["task"] in BOX_TASKS or row["boxes"] for row in rows)
    settings = ExportSettings(
        prompt=prompts.pop() if len(prompts) == 1 else None,
        labels={label: n for n, label in enumerate(labels)},
        has_boxes=has_boxes,
    )
    groups = groupby(rows, key=itemgetter("index", "id", "image"))
    entries = (
        ExportEntry(number, image, image, image, image, None, bytes, tuple(same))
        for number, ((_, _, image), same) in enumerate(groups, start=1)
    )
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "coco.json", entries, settings)
        made: dict[str, Any] = json.loads((Path(folder) / "coco.json").read_bytes())
    return made


def caption_annotations(entry: ExportEntry, options: ExportSettings) -> Iterator[dict[str, Any]]:
    """The image's answers as COCO captions, each with its prompt."""
    for row in entry.rows:
        options.counts.captions += 1
        ids = {"id": options.counts.captions, "image_id": entry.number}
        yield ids | {"caption": row["answer"] or "", "prompt": row["prompt"]}


def instance_annotations(entry: ExportEntry, options: ExportSettings) -> Iterator[dict[str, Any]]:
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
        "confidence": box.confidence,
    }
    if box.mask is not None:
        from pgcli.rle import area

        made["segmentation"] = {"size": list(box.mask.size), "counts": box.mask.counts}
        made["area"] = area(box.mask)
    return made


COCO = ExportFormat(write, options=frozenset({"labels", "root"}))
