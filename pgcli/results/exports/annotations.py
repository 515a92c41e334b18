"""Exports boxes as annotations: COCO, FiftyOne, Label Studio and YOLO."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pgcli import rle
from pgcli.boxes import box_area, parse_region, prompt_with_region
from pgcli.inputs.options import REGION
from pgcli.labels.labelstudio import HAS_BOXES, PROMPT, TEXT_PROMPT
from pgcli.output.reader import Row
from pgcli.records import Box, Mask
from pgcli.results.exports.files import store_image
from pgcli.results.exports.rows import (
    Export,
    ExportEntry,
    ExportFormat,
    box_sides,
    is_text_row,
    outline,
    row_boxes,
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


#: Characters that JSON leaves unescaped and that YAML reads as line ends or rejects.
NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

#: Endings of images that Ultralytics does not read.
UNSUPPORTED = (".gif", ".ppm", ".pgm", ".pbm", ".pnm", ".jpe", ".jfif")


def write_yolo(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Fill the folder, without unreadable images. An image without boxes has an empty label file.

    If any box has a mask, all boxes are polygons, since Ultralytics rejects a mixture. `pgcli
    import` reads the prompt in data.yaml.
    """
    (target / "images").mkdir()
    (target / "labels").mkdir()
    for entry in entries:
        if not store_image(target / "images", entry, export):
            continue
        lines = [line(box, mask, entry, export) for box, mask in entry.boxes()]
        file = target / "labels" / f"{entry.stem}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines), encoding="utf-8")
        export.counts.images += 1
        export.counts.unsupported += entry.name.lower().endswith(UNSUPPORTED)
        export.counts.boxes += len(lines)
    names = "".join(f"  {index}: {yaml_quoted(name)}\n" for name, index in export.labels.items())
    prompt = "" if export.prompt is None else f"prompt: {yaml_quoted(export.prompt)}\n"
    head = f"train: images\nval: images\n{prompt}names:"
    (target / "data.yaml").write_text(f"{head}\n{names}" if names else f"{head} {{}}\n", "utf-8")


def line(box: Box, mask: Mask | None, entry: ExportEntry, export: Export) -> str:
    """The class, and the centre and size of a box or the points of a polygon, as fractions."""
    left, right = box.xmin / entry.width, box.xmax / entry.width
    top, bottom = box.ymin / entry.height, box.ymax / entry.height
    numbers: Sequence[float]
    if not export.stats.has_masks:
        numbers = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    elif not (numbers := (outline(box, mask) / (entry.width, entry.height)).ravel().tolist()):
        export.counts.boxes_without_mask += 1
        numbers = (left, top, right, top, right, bottom, left, bottom)
    return f"{export.labels[box.label]} " + " ".join(f"{number:.10g}" for number in numbers) + "\n"


def yolo_name(part: str, is_folder: bool) -> str:
    """A name under which Ultralytics finds the labels.

    It replaces the last folder called `images` in an image's path by `labels`.
    """
    part = without_leading_dot(part, is_folder)
    return f"{part}_" if is_folder and part == "images" else part


def yaml_quoted(label: str) -> str:
    """The label as a YAML string: JSON with the characters escaped that YAML treats differently."""
    return NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text(label))


YOLO = ExportFormat(
    write_yolo,
    is_folder=True,
    needs_boxes=True,
    reads_images=True,
    unique_stems=True,
    suffixes=frozenset({".txt"}),
    sanitize_name=yolo_name,
    options=frozenset({"label", "label_file", "store_images"}),
)
