"""Stores the images of an export that is a folder, as links or copies."""

from __future__ import annotations

import os
from pathlib import Path

from pgcli.images import ImageError
from pgcli.results.exports.entry import ExportEntry, ExportSettings
from pgcli.results.exports.exif import upright_file


def store_image(folder: Path, entry: ExportEntry, options: ExportSettings) -> bool:
    """Link or copy the entry's image into the folder; return False if it cannot be read.

    Images that are not files, such as bytes, are copied.
    """
    if options.images == "none":
        return True
    is_linked = options.images == "link" and entry.path is not None
    data = b"" if is_linked else image_bytes(entry, options)
    if data is None:
        return False
    target = folder / entry.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        target.symlink_to(os.path.realpath(str(entry.path)))
    else:
        target.write_bytes(data)
        options.counts.copied += options.images == "link"
    return True


def image_bytes(entry: ExportEntry, options: ExportSettings) -> bytes | None:
    """The bytes of the entry's image, upright as its boxes expect.

    Returns None if it cannot be read, and counts it as missing.
    """
    try:
        data = entry.read()
        upright = upright_file(data)
        options.counts.rotated += upright is not None
        return data if upright is None else upright
    except ImageError as problem:
        options.counts.missing.add(entry.image, problem.fault)
        return None
