"""Stores the images of an exported folder as links or upright copies."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from pgcli.images import ImageError, ImageLimits, stored_and_upright
from pgcli.images.errors import wrap_image_errors
from pgcli.results.drawings.formats import SAVE_OPTIONS
from pgcli.results.exports.entry import Export, ExportEntry

SUBSAMPLING_420 = 2  # symmetric, so that rotation loses no colour resolution


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
    options = dict(SAVE_OPTIONS.get(str(stored.format), {}))
    if isinstance(stored, JpegImageFile) and get_sampling(stored) == SUBSAMPLING_420:
        options["subsampling"] = SUBSAMPLING_420
    names = ("icc_profile",) if stored.format == "TIFF" else ("icc_profile", "exif")
    return options | {name: upright.info[name] for name in names if upright.info.get(name)}


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
