"""Fuzz targets for annotation formats: imports are compared with the format's own library.

Each format has its own file with its oracle and its seeds, for example `fuzz_coco.py`.
"""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from pgcli.errors import UsageError
from pgcli.labels.labelled_image import LabelSettings, TruthRows
from pgcli.labels.sources import read_upright

#: The images beside the annotations, with their widths and heights.
SIZES = {"a.png": (64, 48), "b.png": (40, 40)}
#: A label and the corners of a box within its image.
PlainBox = tuple[str, float, float, float, float]
#: The boxes that a library reads, by image name; None for a file that it rejects, where there is
#: nothing to compare.
Oracle = Callable[[Path], dict[str, list[PlainBox]] | None]


def check_import(format: str, file: Path, oracle: Oracle) -> None:
    """Read annotations in a folder with the images of SIZES: an error (2), or the library's boxes.

    Every box must be one of the library's, and none may be missing unless boxes were skipped. An
    image whose boxes were all skipped has no row.
    """
    for name, size in SIZES.items():
        Image.new("RGB", size).save(file.parent / name)
    settings = LabelSettings(file.parent)
    try:
        labels = read_upright(format, file, settings)
        rows = list(TruthRows(labels, file.parent))
    except UsageError:
        return
    expected = oracle(file)
    if expected is None:
        return
    read = {image.id: boxes_of(image.boxes) for image in labels.images if image.boxes is not None}
    for name, boxes in read.items():
        surplus = boxes - Counter(map(rounded, expected.get(name, [])))
        assert not surplus, f"{name} has boxes that the library does not have: {surplus}"
    counts = settings.counts
    if not counts.kinds and not counts.images[0]:
        assert read == {name: Counter(map(rounded, expected[name])) for name in expected}
    for row in rows:
        assert row["width"] * row["height"] > 0
        assert row["task"] != "detect" or row["boxes"] or not expected.get(row["id"])


def boxes_of(boxes: object) -> Counter[PlainBox]:
    """The rounded boxes, and how often each occurs."""
    return Counter(
        rounded((box.label, *box.corners))
        for box in boxes  # type: ignore[attr-defined]
    )


def rounded(box: PlainBox) -> PlainBox:
    """The box as an import keeps it: corners with three decimals out of six digits, and a label
    without byte order marks.
    """
    label, *corners = box
    left, top, right, bottom = (round(float(f"{corner:.6g}"), 3) + 0.0 for corner in corners)
    return label.lstrip("\ufeff"), left, top, right, bottom


def clipped(
    label: str, corners: tuple[float, float, float, float], size: tuple[int, int]
) -> PlainBox | None:
    """The box clipped to an image of this width and height; None if nothing remains."""
    width, height = size
    left, right = (min(max(corner, 0.0), width) for corner in corners[::2])
    top, bottom = (min(max(corner, 0.0), height) for corner in corners[1::2])
    is_box = all(map(math.isfinite, corners)) and left < right and top < bottom
    return (label, left, top, right, bottom) if is_box else None
