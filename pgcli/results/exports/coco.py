"""Exports COCO JSON: images, annotations and categories, or captions; also for FiftyOne."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from pgcli import rle
from pgcli.boxes import box_area
from pgcli.inputs.options import REGION
from pgcli.output.reader import Row
from pgcli.records import BOX_TASKS, Box, Mask
from pgcli.regions import prompt_with_region
from pgcli.results.exports.entry import Export, ExportEntry, ExportFormat, without_leading_dot
from pgcli.results.exports.image_files import store_image
from pgcli.results.exports.rows import FileRow, box_sides, collect_stats
from pgcli.results.options import ExportOptions
from pgcli.rows import json_text, mask_to_dict


def write_coco(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file, keeping one entry in memory at a time.

    Rows of tasks with boxes make an instances file, others a captions file. In a file of both, the
    images have the captions, as pycocotools expects a category in every annotation. Annotations are
    first written to a temporary file, since COCO lists all images before them.
    """
    has_boxes, counts = export.stats.has_boxes, export.counts
    with (
        open(target, "w", encoding="utf-8") as file,
        tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as pending,
    ):
        info = {"description": "made by pgcli"}
        if has_boxes and export.prompt is not None:
            info["prompt"] = export.prompt  # which `pgcli import` gives its rows
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
        if has_boxes:  # with categories, pycocotools expects one in every annotation
            categories = [{"id": index + 1, "name": name} for name, index in export.labels.items()]
            file.write(f',"categories":{json_text(categories)}')
        file.write("}\n")


def captions_beside_boxes(entry: ExportEntry) -> dict[str, Any]:
    """The captions of an image in a file of boxes, and whether it has no row of boxes."""
    texts = [row for row in entry.rows if row["task"] not in BOX_TASKS and not row["boxes"]]
    if not texts:
        return {}
    captions = [
        {"caption": row["answer"] or "", "prompt": row["prompt"]} | region_key(row) for row in texts
    ]
    return {"captions": captions} | ({"has_boxes": False} if len(texts) == len(entry.rows) else {})


def region_key(row: Row) -> dict[str, Any]:
    """The region of a row, under the key that `pgcli import` reads; empty without one."""
    return {REGION: row[REGION]} if row.get(REGION) else {}


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of the file for rows without errors; rows of an image follow each other."""
    stats = collect_stats((FileRow(row, 0, 0) for row in rows), None)
    labels = {label: number for number, label in enumerate(sorted(stats.labels))}
    groups = groupby(rows, key=itemgetter("index", "id", "image"))
    entries = (
        ExportEntry(number, image, tuple(same))
        for number, ((_, _, image), same) in enumerate(groups, start=1)
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coco.json"
        write_coco(file, entries, Export(ExportOptions(to="coco"), stats, labels))
        content: dict[str, Any] = json.loads(file.read_bytes())
    return content


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
    if export.options.to == "fiftyone":  # whose importer calls the score confidence
        confidence = values.pop("confidence")
        values["score"] = box.score if confidence is None else confidence
    return values


def write_fiftyone(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Fill a folder that FiftyOne imports as a COCODetectionDataset: data/ and labels.json.

    An unreadable image is skipped with its boxes.
    """
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
