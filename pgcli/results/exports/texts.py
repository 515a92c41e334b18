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

    Each file is written atomically. If `a.jpg` has `a.txt`, `a.png` gets `a.png.txt`.
    """
    options = export.options
    texts = Sidecars(suffix, options.prepend, options.append, overwrite=options.overwrite)
    is_next_to_images = target == Path()
    for entry in entries:
        image = entry.path if is_next_to_images else str(target / entry.name)
        own_image = image if is_next_to_images else str(target / entry.own_name)
        # a row may name any path: texts are written only next to existing images
        is_missing = is_next_to_images and image is not None and not Path(image).is_file()
        if image is None or own_image is None or is_missing:
            export.counts.missing.add(entry.image, NO_FILE)
            continue
        name = texts.claim(image)
        if name is None:
            export.counts.unnamed += 1
            continue
        if name != texts.own_name(own_image):
            export.counts.add_renamed(texts.own_name(own_image), name)
        below = None if is_next_to_images else str(target)
        texts.write(name, entry.rows[0]["answer"], below=below)
    export.counts.images += texts.counts["written"]
    export.counts.kept += texts.counts["kept"]


def text_format(suffix: str) -> ExportFormat:
    """The format of text files with this suffix."""
    return ExportFormat(
        partial(write_texts, suffix=suffix),
        is_folder=True,
        is_merged=True,
        max_one="answers",
        suffixes=frozenset({suffix}),
        options=frozenset({"prepend", "append"}),
    )


TXT = text_format(".txt")
CAPTION = text_format(".caption")
