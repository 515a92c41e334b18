"""Exports folders and archives of images, tables, and texts beside images."""

from __future__ import annotations

import csv
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile

from pgcli.images import ImageError, ImageLimits, stored_and_upright
from pgcli.images.files import wrap_image_errors
from pgcli.output.reader import Row
from pgcli.records import Fault
from pgcli.results.exports.rows import (
    Export,
    ExportEntry,
    ExportFormat,
    box_sides,
    without_leading_dot,
)
from pgcli.results.hooks import Sidecars
from pgcli.results.overlay import SAVE_OPTIONS
from pgcli.rows import RowSchema, json_text


def upright_file(data: bytes) -> bytes | None:
    """The image rotated by its EXIF orientation, in its own format; None if it is upright.

    JPEG and AVIF are encoded again in high quality; others keep every pixel. Raises `ImageError`.
    """
    images = stored_and_upright(data, ImageLimits())
    if images is None:
        return None
    stored, upright = images
    file = BytesIO()
    with wrap_image_errors():
        upright.save(file, str(stored.format), **save_options(stored, upright))
    return file.getvalue()


def save_options(stored: ImageFile.ImageFile, upright: Image.Image) -> dict[str, Any]:
    """Options that save the rotated image with its colour profile and EXIF."""
    names = ("icc_profile",) if stored.format == "TIFF" else ("icc_profile", "exif")
    kept = {name: upright.info[name] for name in names if upright.info.get(name)}
    return {**SAVE_OPTIONS.get(str(stored.format), {}), **kept}


def store_image(folder: Path, entry: ExportEntry, export: Export) -> bool:
    """Link or copy the entry's image into the folder; return False for an unreadable image.

    Images that are not files, such as bytes, are copied.
    """
    if export.options.store_images == "none":
        return True
    is_linked = export.options.store_images == "link" and entry.path is not None
    data = b"" if is_linked else image_bytes(entry, export)
    if data is None:
        return False
    target = folder / entry.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        target.symlink_to(os.path.realpath(str(entry.path)))
    else:
        target.write_bytes(data)
        export.counts.copied += export.options.store_images == "link"
    return True


def image_bytes(entry: ExportEntry, export: Export) -> bytes | None:
    """The bytes of the entry's image, upright like its boxes; None, counted, if unreadable."""
    try:
        data = entry.read()
        upright = upright_file(data)
        export.counts.rotated += upright is not None
        return data if upright is None else upright
    except ImageError as problem:
        export.counts.missing.add(entry.image, problem.fault)
        return None


#: The words of names that `datasets` takes for a split, a shard, a hidden file or an archive.
SPECIAL = re.compile(
    r"(?:^|(?<=[-._ 0-9]))"
    r"(?:train|training|validation|valid|dev|val|test|testing|eval|evaluation)(?=[-._ 0-9]|$)"
    r"|-[0-9]{5}-of(?=-[0-9]{5})|^_(?=_)|:(?=:)"
)


def write_imagefolder(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Fill the folder, without unreadable images."""
    with open(target / "metadata.jsonl", "w", encoding="utf-8") as file:
        for entry in entries:
            if not store_image(target, entry, export):
                continue
            file.write(json_text(metadata(entry, export)) + "\n")
            export.counts.images += 1


def metadata(entry: ExportEntry, export: Export) -> dict[str, Any]:
    """The image's line: its text, and its boxes if a row has boxes.

    `categories` are indices into the list of all labels, `labels` their names.
    """
    line: dict[str, Any] = {"file_name": entry.name}
    if texts := entry.texts:
        line["text"] = texts[0]
    if export.labels or len(texts) < len(entry.rows):
        boxes = [box for box, _ in entry.boxes()]
        export.counts.boxes += len(boxes)
        line["objects"] = {
            "bbox": [[float(side) for side in box_sides(box)] for box in boxes],
            "categories": [export.labels[box.label] for box in boxes],
            "labels": [box.label for box in boxes],
            "scores": [box.score for box in boxes],
        }
    return line


def imagefolder_name(part: str, is_folder: bool) -> str:
    """The name with a `~` after every word that `datasets` would interpret.

    It makes splits of folders and files with such names, and drops their metadata.
    """
    return SPECIAL.sub(r"\g<0>~", without_leading_dot(part, is_folder))


IMAGEFOLDER = ExportFormat(
    write_imagefolder,
    is_folder=True,
    max_one="texts",
    reads_images=True,
    suffixes=frozenset({".jsonl"}),
    sanitize_name=imagefolder_name,
    options=frozenset({"label", "label_file", "store_images"}),
)


def write_webdataset(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the tar, without unreadable images. Keys are numbers, which contain no dot."""
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for entry in entries:
            data = image_bytes(entry, export)
            if data is None:
                continue
            (row,) = entry.rows
            add_file(tar, entry.name, data)
            add_file(tar, f"{entry.stem}.txt", (row["answer"] or "").encode())
            add_file(tar, f"{entry.stem}.json", json_text(row).encode())
            export.counts.images += 1
            export.counts.boxes += len(row["boxes"])


def add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file without time and owner, for reproducible exports."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


WEBDATASET = ExportFormat(write_webdataset, max_one="answers", reads_images=True)


#: A spreadsheet evaluates a text that starts with one of these signs, also in full width, after
#: whitespace and invisible characters.
_FORMULA = re.compile(
    r"[\t\r]|[\s\x00-\x1f\x7f-\xa0\xad\u180e\u200b-\u200f\u2060-\u206f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)


def write_csv(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file, a line for each row, with the mark by which Excel knows UTF-8."""
    names = [*export.stats.columns]
    with open(target, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)  # lines end in \r\n, so that texts with either are quoted
        writer.writerow(map(cell, names))
        for entry in entries:
            for row in entry.rows:
                writer.writerow(cell(row.get(name)) for name in names)
                export.counts.boxes += len(row["boxes"])
            export.counts.images += 1


def cell(value: Any) -> Any:
    """The value as a cell; a formula gets a leading apostrophe."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = json_text(value) if isinstance(value, list | dict) else str(value)
    return f"'{text}" if _FORMULA.match(text) else text


CSV = ExportFormat(write_csv)


def write_table(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file."""
    from pgcli.output.tables import PARQUET  # imports pyarrow

    def rows() -> Iterator[Row]:
        for entry in entries:
            export.counts.images += 1
            for row in entry.rows:
                export.counts.boxes += len(row["boxes"])
                yield row

    with target.open("xb") as file:
        PARQUET.write(file, rows(), RowSchema.of(export.stats.columns))


TABLE = ExportFormat(write_table, keeps_types=True)


NO_FILE = Fault("missing", "There is no image file here to put a text next to.")


def write_texts(
    target: Path, entries: Iterable[ExportEntry], export: Export, *, suffix: str
) -> None:
    """Write a text for each image below the folder, or next to the images if it is `Path()`.

    Each file is written atomically. Both have the names that `Sidecars` gives.
    """
    options, counts = export.options, export.counts
    below = None if target == Path() else str(target)
    texts = Sidecars(suffix, options.prepend, options.append, overwrite=options.overwrite)
    for entry in entries:
        row, image = entry.rows[0], entry.path if below is None else str(target / entry.name)
        # a row may name any path: texts are written only next to existing images
        if image is None or (below is None and not Path(image).is_file()):
            counts.missing.add(entry.image, NO_FILE)
        elif (name := texts.claim(image)) is None:
            counts.unnamed += 1
        else:
            if name != texts.own_name(image):
                counts.add_renamed(f"the text of {row['id']}", Path(name).name)
            texts.write(name, row["answer"], below=below)
    counts.images += texts.counts["written"]
    counts.kept += texts.counts["kept"]


def text_format(suffix: str) -> ExportFormat:
    """The format of text files with this suffix."""
    return ExportFormat(
        partial(write_texts, suffix=suffix),
        is_folder=True,
        is_merged=True,
        max_one="answers",
        unique_stems=True,
        suffixes=frozenset({suffix}),
        options=frozenset({"prepend", "append"}),
    )


TXT = text_format(".txt")
CAPTION = text_format(".caption")
