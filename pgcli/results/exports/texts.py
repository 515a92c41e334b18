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

    Each file is written atomically.
    """
    options, counts = export.options, export.counts
    texts = Sidecars(suffix, options.prepend, options.append, overwrite=options.overwrite)
    for entry in entries:
        answer = entry.rows[0]["answer"]
        if target != Path():
            texts.write(str(target / entry.name), answer, below=str(target))
            continue
        # a row may name any path: texts are written only next to existing images
        if entry.path is None or not Path(entry.path).is_file():
            counts.missing.add(entry.image, NO_FILE)
        elif (name := texts.claim(entry.path)) is None:
            counts.unnamed += 1
        else:
            if name != (own_name := texts.own_name(entry.path)):
                counts.add_renamed(own_name, name)
            texts.write(name, answer)
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
