"""Fuzz targets of annotation formats: what is read, compared with what the format's library reads.

Each format has a file of its own with its oracle and its seeds: `fuzz_coco.py` is one.
"""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from pgcli.errors import UsageError
from pgcli.results.imports.rows import TruthRows
from pgcli.results.imports.truth import ImportSettings
from pgcli.results.imports.upright import read_annotations

#: The images beside the annotations, by name, each with its width and height.
SIZES = {"a.png": (64, 48), "b.png": (40, 40)}
#: A label and the corners of a box, which is within its image.
PlainBox = tuple[str, float, float, float, float]
#: The boxes that a library reads, by the name of their image; None for a file that it refuses,
#: where nothing can be compared.
Oracle = Callable[[Path], dict[str, list[PlainBox]] | None]


def check_import(format: str, file: Path, oracle: Oracle) -> None:
    """Read annotations in a folder of the images of SIZES: a refusal (2), or the library's boxes.

    Each box has to be one of the library's, and none may be missing if nothing was left out. An
    image whose boxes were all left out has no row.
    """
    for name, size in SIZES.items():
        Image.new("RGB", size).save(file.parent / name)
    settings = ImportSettings(file.parent)
    try:
        annotations = read_annotations(format, file, settings)
        rows = list(TruthRows(annotations, file.parent))
    except UsageError:
        return
    expected = oracle(file)
    if expected is None:
        return
    read = {image.id: boxes_of(image.boxes) for image in annotations.images}
    for name, boxes in read.items():
        surplus = boxes - Counter(map(rounded, expected.get(name, [])))
        assert not surplus, f"{name} has boxes that the library does not have: {surplus}"
    counts = settings.counts
    if not counts.left_out and not counts.missing.count:
        assert read == {name: Counter(map(rounded, expected[name])) for name in expected}
    for row in rows:
        assert row["width"] * row["height"] > 0
        assert row["task"] != "detect" or row["boxes"] or not expected.get(row["id"])


def boxes_of(boxes: object) -> Counter[PlainBox]:
    """The boxes, rounded, with their number."""
    return Counter(
        rounded((box.label, *box.corners))
        for box, _ in boxes  # type: ignore[attr-defined]
    )


def rounded(box: PlainBox) -> PlainBox:
    """The box with corners of three decimals, of the six digits that an import keeps, and with a
    label without byte order marks, which an import strips.
    """
    label, *corners = box
    left, top, right, bottom = (round(float(f"{corner:.6g}"), 3) + 0.0 for corner in corners)
    return label.lstrip("\ufeff"), left, top, right, bottom


def clipped(
    label: str, corners: tuple[float, float, float, float], size: tuple[int, int]
) -> PlainBox | None:
    """The box within an image of this width and height; None without an area there."""
    width, height = size
    left, right = (min(max(corner, 0.0), width) for corner in corners[::2])
    top, bottom = (min(max(corner, 0.0), height) for corner in corners[1::2])
    is_box = all(map(math.isfinite, corners)) and left < right and top < bottom
    return (label, left, top, right, bottom) if is_box else None
