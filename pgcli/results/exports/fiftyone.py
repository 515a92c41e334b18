"""Exports a folder that FiftyOne imports as a COCODetectionDataset: data/ and labels.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pgcli.results.exports.coco import write_document
from pgcli.results.exports.entry import (
    ExportEntry,
    ExportFormat,
    ExportSettings,
    without_leading_dot,
)
from pgcli.results.exports.image_files import store_image


def write(target: Path, entries: Iterable[ExportEntry], options: ExportSettings) -> None:
    """Fill the folder. An unreadable image is skipped with its boxes."""

    def stored() -> Iterator[tuple[ExportEntry, str]]:
        for entry in entries:
            if store_image(target / "data", entry, options):
                yield entry, entry.name

    (target / "data").mkdir()
    write_document(target / "labels.json", stored(), options)


FIFTYONE = ExportFormat(
    write,
    is_folder=True,
    needs_boxes=True,
    reads_images=True,
    sanitize_name=without_leading_dot,
    options=frozenset({"labels", "store_images"}),
)
