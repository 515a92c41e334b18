"""The pictures of an export that is a folder: links to them, or copies."""

from __future__ import annotations

import os
from pathlib import Path

from pgcli.views.exports.entry import Entry, Wanted


def placed(folder: Path, entry: Entry, wanted: Wanted) -> bool:
    """Have the entry's picture in the folder, as `wanted` says; False where it cannot be read."""
    if wanted.pictures == "none":
        return True
    data = b""
    if wanted.pictures == "copy":
        read = picture_at(entry.path)
        if read is None:
            return False
        data = read
    elif entry.path is None or not os.path.isfile(entry.path):  # noqa: PTH113 - may be undecodable
        return False
    target = folder / entry.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if wanted.pictures == "copy":
        target.write_bytes(data)
    else:
        target.symlink_to(os.path.realpath(str(entry.path)))
    return True


def picture_at(path: str | None) -> bytes | None:
    """What the file holds, None where it is not there or holds no picture."""
    from pgcli.images import Limits, Unreadable
    from pgcli.images.files import read
    from pgcli.images.formats import recognised

    if path is None:
        return None
    try:
        data = read(path, Limits())
        recognised(data)
    except Unreadable:
        return None
    return data
