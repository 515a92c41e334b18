"""Exports YOLO's folder: images/, labels/ with a line for each box or polygon, and data.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pgcli.records import Box, Mask
from pgcli.results.exports.image_files import store_image
from pgcli.results.exports.rows import (
    Export,
    ExportEntry,
    ExportFormat,
    outline,
    without_leading_dot,
)
from pgcli.rows import json_text

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
