"""COCO's fuzz target with pycocotools as its oracle, and its seeds."""

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO

from pgcli.text import encodable
from tests.support.awkward import paths, replace_at, to_text
from tests.support.fuzz_imports import SIZES, PlainBox, check_import, clipped


def coco(folder: Path, data: bytes) -> None:
    """Import the bytes as COCO: the same boxes as pycocotools reads, or an error."""
    file = folder / "coco.json"
    file.write_bytes(data)
    check_import("coco", file, coco_boxes)


def coco_boxes(file: Path) -> dict[str, list[PlainBox]] | None:
    """The file's boxes without crowds, as pycocotools reads them."""
    boxes: dict[str, list[PlainBox]] = {}
    try:
        with redirect_stdout(StringIO()):
            read = COCO(file)
        for image in read.loadImgs(read.getImgIds()):
            name = encodable(image["file_name"])
            size = SIZES.get(name) or (image["width"], image["height"])
            own = boxes.setdefault(name, [])
            for annotation in read.imgToAnns.get(image["id"], ()):
                if annotation.get("iscrowd"):
                    continue
                sides = annotation.get("bbox") or bounds(annotation["segmentation"], size)
                left, top, width, height = map(float, sides)
                label = encodable(read.cats[annotation["category_id"]]["name"].strip())
                corners = (left, top, left + width, top + height)
                own += filter(None, [clipped(label, corners, size)])
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError):
        return None
    return boxes


def bounds(segmentation: Any, size: tuple[int, int]) -> list[float]:
    """Left, top, width and height of a mask, from run lengths by pycocotools or from polygons."""
    if isinstance(segmentation, dict):
        return list(coco_masks.toBbox(coco_masks.frPyObjects(segmentation, size[1], size[0])))
    points = np.array([number for part in segmentation for number in part], float).reshape(-1, 2)
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    return [left, top, right - left, bottom - top]


def some_coco() -> Iterator[bytes]:
    """Instances with boxes, masks and a crowd, also with an odd value in each place."""
    known = document()
    yield json.dumps(known).encode()
    for path in paths(known):
        for value in ODD:
            changed = deepcopy(known)
            replace_at(changed, path, value)
            yield to_text(changed).encode()


ODD = (None, -1, 0, 2, "", "x", 1.0, 10**400, float("nan"), [], {}, [[]], [[1, 2, 3, 4]])


def document() -> dict[str, Any]:
    """Two images, the second without boxes, and four annotations of the first."""
    images = [
        {"id": number, "file_name": name, "width": width, "height": height}
        for number, (name, (width, height)) in enumerate(SIZES.items(), start=1)
    ]
    boxes = [
        {"category_id": 3, "bbox": [8, 4, 20, 10], "area": 200},
        {"category_id": 1, "bbox": [-5, 1, 90, 9.5], "iscrowd": 0, "segmentation": [SQUARE]},
        {"category_id": 1, "bbox": [8, 4, 2, 10], "segmentation": RUNS},
        {"category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 1},
    ]
    annotations = [{"id": n, "image_id": 1} | box for n, box in enumerate(boxes)]
    categories = [{"id": 3, "name": "cat"}, {"id": 1, "name": "red car", "supercategory": "car"}]
    return {"images": images, "annotations": annotations, "categories": categories}


SQUARE = [8, 4, 28, 4, 28, 14, 8, 14]
RUNS = {"size": [48, 64], "counts": [388, 10, 38, 10, 2626]}
