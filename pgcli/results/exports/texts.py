"""Exports a text file for each image, next to it or in a folder, as LoRA trainers read them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pgcli.records import Fault
from pgcli.results.exports.entry import Export, ExportEntry, ExportFormat
from pgcli.results.sidecars import Sidecars

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
