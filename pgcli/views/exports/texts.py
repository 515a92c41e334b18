"""Exports a text file for each image, next to it or in a folder, as LoRA trainers read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pgcli.records import Fault
from pgcli.views.exports.entry import ExportEntry, ExportFormat, ExportSettings
from pgcli.views.text_files import TextFiles

NO_FILE = Fault("missing", "There is no image file here to put a text next to.")
HINT = "free disk space, check the folder's permissions, or name another folder with -o"


def write(
    target: Path, entries: Iterable[ExportEntry], options: ExportSettings, *, suffix: str
) -> None:
    """Write a text for each image below the folder, or next to the images if it is `Path()`.

    Each file is written atomically. If `a.jpg` has `a.txt`, `a.png` gets `a.png.txt`.
    """
    texts = TextFiles(suffix, options.texts, token=f"export-{os.getpid()}", hint=HINT)
    names, is_next_to_images = texts.names, target == Path()
    for entry in entries:
        image = entry.path if is_next_to_images else str(target / entry.name)
        own_image = image if is_next_to_images else str(target / entry.own_name)
        # a row may name any path: texts are written only next to existing images
        is_missing = is_next_to_images and image is not None and not Path(image).is_file()
        if image is None or own_image is None or is_missing:
            options.counts.missing.add(entry.image, NO_FILE)
            continue
        name = names.claim(image)
        if name is None:
            options.counts.unnamed += 1
            continue
        if name != names.own(own_image):
            options.counts.add_renamed(names.own(own_image), name)
        folder = os.path.dirname(image) or "." if is_next_to_images else str(target)  # noqa: PTH120
        texts.write(folder, os.path.relpath(name, folder), entry.rows[0]["answer"], image)
    options.counts.images += texts.counts["written"]
    options.counts.kept += texts.counts["kept"]
    options.counts.edited += texts.counts["edited"]
    options.counts.unrecorded = texts.written.problem if texts.counts["written"] else None


def text_format(suffix: str) -> ExportFormat:
    """The format of text files with this suffix."""
    return ExportFormat(
        partial(write, suffix=suffix),
        is_folder=True,
        is_merged=True,
        max_one="answers",
        suffixes=frozenset({suffix}),
        options=frozenset({"prepend", "append", "existing", "overwrite_edited"}),
    )


TXT = text_format(".txt")
CAPTION = text_format(".caption")
