"""YOLO's fuzz target with an oracle that has the rules of Ultralytics, and its seeds.

Ultralytics is too large for a dependency; `test_export_tools.py` compares the rules.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.fuzz_imports import SIZES, PlainBox, check_import, clipped


def yolo(folder: Path, data: bytes) -> None:
    """Import data.yaml and the labels of two images, separated by NULs: the boxes, or an error."""
    write_folder(folder, data)
    check_import("yolo", folder / "data.yaml", yolo_boxes)


def write_folder(folder: Path, data: bytes) -> None:
    """Write the files, which follow each other in the bytes."""
    for name, content in zip(("data.yaml", "a.txt", "b.txt"), data.split(b"\0", 2), strict=False):
        (folder / name).write_bytes(content)


def yolo_boxes(file: Path) -> dict[str, list[PlainBox]] | None:
    """The boxes that Ultralytics trains on; None if it rejects an image's labels.

    Duplicates are kept, although Ultralytics removes them.
    """
    try:
        data = yaml.safe_load(file.read_text("utf-8-sig"))
        names = data["names"] if isinstance(data["names"], list) else [*data["names"].values()]
        return {
            name: image_boxes(file.parent / name, data, [str(label).strip() for label in names])
            for name in SIZES
        }
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def image_boxes(image: Path, data: dict[str, Any], names: list[str]) -> list[PlainBox]:
    """The boxes of an image. Raises ValueError for labels that Ultralytics rejects."""
    file = image.with_suffix(".txt")
    lines = file.read_text("utf-8-sig").splitlines() if file.exists() else []
    rows = [list(map(float, line.split())) for line in lines if line.strip()]
    if data.get("kpt_shape"):
        raise ValueError("poses, which pgcli refuses")
    if any(len(row) > 6 for row in rows):
        if any(len(row) < 7 or len(row) % 2 == 0 for row in rows):
            raise ValueError("not all are polygons")
        rows = [[row[0], *polygon_box(row[1:])] for row in rows]
    elif any(len(row) != 5 for row in rows):
        raise ValueError("not all are boxes")
    boxes = []
    for number, *numbers in rows:
        if not all(map(math.isfinite, numbers)) or number % 1 or not 0 <= number < len(names):
            raise ValueError("not a class, or not numbers")
        x, y, width, height = numbers[:4]
        if max(x, y, width, height) > 1.01 or min(x, y) < -0.01 or min(width, height) < 0:
            raise ValueError("not fractions")
        across, down = SIZES[image.name]
        corners = ((x - width / 2) * across, (y - height / 2) * down)
        far = ((x + width / 2) * across, (y + height / 2) * down)
        boxes.append(clipped(names[int(number)], (*corners, *far), (across, down)))
    return [box for box in boxes if box is not None]


def polygon_box(numbers: list[float]) -> tuple[float, float, float, float]:
    """The centre, the width and the height of a polygon."""
    (left, *_, right), (top, *_, bottom) = sorted(numbers[::2]), sorted(numbers[1::2])
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def some_yolo() -> Iterator[bytes]:
    """Folders of boxes, of polygons, of poses, and of tracks."""
    names = b"names: [cat, red car]\n"
    yield names + b"\0" + b"1 0.5 0.5 0.25 0.25\r\n\r\n0 0.1 0.2 0.3 0.4\0"
    yield b"train: images\nnames:\n  0: cat\n  1: dog\n\0" + b"1.0 .5 5e-1 1 1.005\n"
    yield names + b"\0" + b"0 0.1 0.1 0.9 0.1 0.5 0.75\0" + b"1 0 0 1 0 1 1 0 1\n"
    yield names + b"kpt_shape: [2, 3]\n\0" + b"1 0.5 0.5 0.25 0.25 0.1 0.1 2 0.2 0.2 1"
    yield names + b"\0" + b"1 0.5 0.5 0.25 0.25 0.75 7\n0 0.5 0.5 0.25 0.25 0.5 1\0"
    yield names + b"\0" + b"1 0.5 0.5 0.25 0.25 0.75\n"
