"""Exports COCO JSON: images, annotations and categories, or captions; also for FiftyOne."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli import rle
from pgcli.boxes import box_area, prompt_with_region
from pgcli.inputs.options import REGION
from pgcli.output.reader import Row
from pgcli.records import Box, Mask
from pgcli.results.exports.image_files import store_image
from pgcli.results.exports.rows import (
    Export,
    ExportEntry,
    ExportFormat,
    box_sides,
    is_text_row,
    without_leading_dot,
)
from pgcli.rows import json_text, mask_to_dict


def write_coco(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file, with one entry in memory at a time.

    Rows with boxes make an instances file, others a captions file. In a file of both, the images
    have the captions, since pycocotools expects a category in every annotation. Annotations are
    first written to a temporary file, since COCO lists all images before them.
    """
    has_boxes, counts = export.stats.has_boxes, export.counts
    with (
        open(target, "w", encoding="utf-8") as file,
        tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as pending,
    ):
        info = {"description": "made by pgcli"}
        if has_boxes and export.prompt is not None:
            info["prompt"] = export.prompt  # for `pgcli import`
        file.write(f'{{"info":{json_text(info)},"images":[')
        for entry in entries:
            file.write(",\n" if counts.images else "\n")
            image = {"id": entry.number, "file_name": entry.image}
            image |= {"width": entry.width, "height": entry.height}
            if (id_ := entry.rows[0]["id"]) != entry.image:
                image["row_id"] = id_
            if has_boxes:
                image |= captions_beside_boxes(entry)
            file.write(json_text(image))
            counts.images += 1
            for annotation in image_annotations(entry, export):
                pending.write(",\n" if annotation["id"] > 1 else "\n")
                pending.write(json_text(annotation))
        file.write('\n],"annotations":[')
        pending.seek(0)
        shutil.copyfileobj(pending, file)
        file.write("\n]")
        if has_boxes:  # pycocotools expects categories in all annotations or none
            categories = [{"id": index + 1, "name": name} for name, index in export.labels.items()]
            file.write(f',"categories":{json_text(categories)}')
        file.write("}\n")


def captions_beside_boxes(entry: ExportEntry) -> dict[str, Any]:
    """The captions of an image in a file of boxes, with a mark if it has no row of boxes."""
    texts = [row for row in entry.rows if is_text_row(row)]
    if not texts:
        return {}
    captions = [
        {"caption": row["answer"] or "", "prompt": row["prompt"]} | region_key(row) for row in texts
    ]
    return {"captions": captions} | ({"has_boxes": False} if len(texts) == len(entry.rows) else {})


def region_key(row: Row) -> dict[str, Any]:
    """The region of a row, under the key that `pgcli import` reads; empty without one."""
    return {REGION: row[REGION]} if row.get(REGION) else {}


def image_annotations(entry: ExportEntry, export: Export) -> Iterator[dict[str, Any]]:
    """The image's boxes as COCO's instances, or its answers as captions, each with its prompt."""
    counts = export.counts
    if export.stats.has_boxes:
        for box, mask in entry.boxes():
            counts.boxes += 1
            yield instance(box, mask, entry, export)
        return
    for row in entry.rows:
        counts.captions += 1
        ids = {"id": counts.captions, "image_id": entry.number}
        size = row["width"], row["height"]
        prompt = prompt_with_region(row["prompt"], row.get(REGION), *size)
        yield ids | {"caption": row["answer"] or "", "prompt": prompt} | region_key(row)


def instance(box: Box, mask: Mask | None, entry: ExportEntry, export: Export) -> dict[str, Any]:
    """A box as a COCO annotation; with a mask, the area is the mask's."""
    values: dict[str, Any] = {
        "id": export.counts.boxes,
        "image_id": entry.number,
        "category_id": export.labels[box.label] + 1,  # 0 is the background
        "bbox": box_sides(box),
        "area": round(box_area(box), 2),
        "iscrowd": 0,
        "score": box.score,
        "confidence": box.confidence,
    }
    if mask is not None and mask.rle is not None:
        values["segmentation"] = mask_to_dict(mask)["rle"]
        values["area"] = rle.mask_area(mask.rle)
    if export.options.to == "fiftyone":  # imports the score as its confidence
        del values["confidence"]
    return values


def write_fiftyone(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Fill the data/ and labels.json of FiftyOne's COCODetectionDataset."""
    folder = target / "data"
    folder.mkdir()
    stored = (entry for entry in entries if store_image(folder, entry, export))
    named = (replace(entry, image=entry.name) for entry in stored)
    write_coco(target / "labels.json", named, export)


COCO = ExportFormat(write_coco, writes_paths=True, options=frozenset({"label", "label_file"}))
FIFTYONE = ExportFormat(
    write_fiftyone,
    is_folder=True,
    needs_boxes=True,
    reads_images=True,
    sanitize_name=without_leading_dot,
    options=frozenset({"label", "label_file", "store_images"}),
)
