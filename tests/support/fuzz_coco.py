"""COCO's fuzz target, whose oracle is pycocotools, and its seeds."""

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO

from pgcli.printable import encodable
from tests.support.fuzz_imports import SIZES, PlainBox, check_import, clipped


def coco(folder: Path, data: bytes) -> None:
    """Import the bytes as COCO: what pycocotools reads of it, or a refusal."""
    file = folder / "coco.json"
    file.write_bytes(data)
    check_import("coco", file, coco_boxes)


def coco_boxes(file: Path) -> dict[str, list[PlainBox]] | None:
    """The boxes of the file as pycocotools reads them, without crowds."""
    boxes: dict[str, list[PlainBox]] = {}
    try:
        with redirect_stdout(StringIO()):
            read = COCO(file)
        for image in read.loadImgs(read.getImgIds()):
            name = encodable(image["file_name"])
            size = SIZES.get(name) or (image["width"], image["height"])
            own = boxes.setdefault(name, [])
            for annotation in read.imgToAnns.get(image["id"], ()):
                if annotation.get("iscrowd") or not annotation.get("bbox"):
                    continue
                left, top, width, height = map(float, annotation["bbox"])
                label = encodable(read.cats[annotation["category_id"]]["name"].strip())
                corners = (left, top, left + width, top + height)
                own += filter(None, [clipped(label, corners, size)])
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError):
        return None
    return boxes


def some_coco() -> Iterator[bytes]:
    """Instances with boxes, masks and crowds; each odd entry of the table in a file of its own."""
    for change in ({}, {"iscrowd": 1}, {"bbox": [-5, -5, 90, 9.5]}, {"segmentation": [[1, 1, 9]]}):
        yield json.dumps(document(change)).encode()


def document(change: dict[str, Any]) -> dict[str, Any]:
    """Two images, the second without boxes, and two annotations, of which one is changed."""
    images = [
        {"id": number, "file_name": name, "width": width, "height": height}
        for number, (name, (width, height)) in enumerate(SIZES.items(), start=1)
    ]
    first = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [8, 4, 20, 10], "area": 200}
    second = {"id": 2, "image_id": 1, "category_id": 1, "bbox": [0.5, 1, 9, 9], "iscrowd": 0}
    categories = [{"id": 3, "name": "cat"}, {"id": 1, "name": "red car"}]
    return {"images": images, "annotations": [first, second | change], "categories": categories}
