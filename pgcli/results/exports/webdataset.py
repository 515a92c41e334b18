"""Exports a WebDataset tar: each image with its answer as text and its row as JSON."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from pgcli.results.exports.entry import Export, ExportEntry, ExportFormat
from pgcli.results.exports.image_files import image_bytes
from pgcli.rows import json_text


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
