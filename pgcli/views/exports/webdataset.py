"""A WebDataset tar: for each picture its file, its answer as text and its row as JSON."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Wanted
from pgcli.views.exports.image_files import picture


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Write the tar. A key is the picture's number, which no dot and no other picture shares.

    A picture that cannot be read is left out.
    """
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for entry in entries:
            data = picture(entry, wanted)
            if data is None:
                continue
            (row,) = entry.rows
            add(tar, entry, PurePosixPath(entry.name).suffix.lower(), data)
            add(tar, entry, ".txt", (row["answer"] or "").encode())
            add(tar, entry, ".json", json_text(row).encode())
            wanted.tally.pictures += 1
            wanted.tally.boxes += len(row["boxes"])


def add(tar: tarfile.TarFile, entry: Entry, ending: str, data: bytes) -> None:
    """Add a file under the entry's key; of no time and no owner, so that equal rows are equal."""
    member = tarfile.TarInfo(f"{entry.number:09}{ending}")
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


WEBDATASET = Format(write, one_of="answers", opens=True)
