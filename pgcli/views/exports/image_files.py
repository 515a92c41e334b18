"""The pictures of an export that is a folder: links to them, or copies."""

from __future__ import annotations

import os
from pathlib import Path

from pgcli.images import ImageError
from pgcli.views.exports.entry import Entry, Wanted
from pgcli.views.exports.exif import upright_file


def placed(folder: Path, entry: Entry, wanted: Wanted) -> bool:
    """Have the entry's picture in the folder, as `wanted` says; False where it cannot be read.

    What is no file, as no link leads to it, is copied.
    """
    if wanted.pictures == "none":
        return True
    is_linked = wanted.pictures == "link" and entry.path is not None
    data = b"" if is_linked else picture(entry, wanted)
    if data is None:
        return False
    target = folder / entry.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_linked:
        target.symlink_to(os.path.realpath(str(entry.path)))
    else:
        target.write_bytes(data)
        wanted.tally.copied += wanted.pictures == "link"
    return True


def picture(entry: Entry, wanted: Wanted) -> bytes | None:
    """The bytes of the entry's picture, upright as its boxes are in what has no EXIF.

    None, once that is counted, where it cannot be read.
    """
    try:
        data = entry.read()
        upright = upright_file(data)
        wanted.tally.turned += upright is not None
        return data if upright is None else upright
    except ImageError as problem:
        wanted.tally.missing.add(entry.image, problem.fault)
        return None
