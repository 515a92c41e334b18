"""Exports a text file for each image, next to it or in a folder, as LoRA trainers read them."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from pgcli.errors import OutputFailed
from pgcli.printable import encodable
from pgcli.records import Fault
from pgcli.views.exports.entry import ExportEntry, ExportFormat, ExportSettings
from pgcli.views.output_folder import write_below

MAX_NAME_BYTES = 255  # of file systems
NO_FILE = Fault("missing", "There is no image file here to put a text next to.")
HINT = "free disk space, check the folder's permissions, or name another folder with -o"


def write(
    target: Path, entries: Iterable[ExportEntry], options: ExportSettings, *, suffix: str
) -> None:
    """Write a text for each image below the folder, or next to the images if it is `Path()`.

    Each file is written atomically. If `a.jpg` has `a.txt`, `a.png` gets `a.png.txt`.
    """
    names, is_next_to_images = TextNames(suffix), target == Path()
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
        if write_text(folder, os.path.relpath(name, folder), text_of(entry, options), options):
            options.counts.images += 1
        else:
            options.counts.kept += 1


def text_of(entry: ExportEntry, options: ExportSettings) -> str:
    """The answer with the prepended and appended texts."""
    return encodable(options.prepend + (entry.rows[0]["answer"] or "") + options.append)


@dataclass
class TextNames:
    """Gives each image's text a unique name, also on file systems that ignore case."""

    suffix: str
    taken: set[int] = field(default_factory=set)  # hashes take less memory than millions of names

    def own(self, image: str) -> str:
        """The name of an image's text if no other text has it."""
        return str(PurePosixPath(image).with_suffix(self.suffix))

    def claim(self, image: str) -> str | None:
        """A free name for an image's text, or None if there is none that file systems allow."""
        for name in (self.own(image), image + self.suffix):
            key = hash(unicodedata.normalize("NFC", name).casefold())
            if key not in self.taken and len(os.fsencode(Path(name).name)) <= MAX_NAME_BYTES:
                self.taken.add(key)
                return name
        return None


def write_text(folder: str, name: str, text: str, options: ExportSettings) -> bool:
    """Write the text as `options.existing` says; return False if an existing file is kept."""
    file = Path(folder) / name
    if os.path.lexists(file):
        if options.existing == "skip" or (options.existing == "append" and file.is_symlink()):
            return False
        if options.existing == "append":
            old = read_text_to_append(file).rstrip("\n")
            text = old + (" " if old and not options.prepend else "") + text
    write_below(folder, name, f"{text}\n".encode(), token=f"export-{os.getpid()}", hint=HINT)
    return True


def read_text_to_append(file: Path) -> str:
    """The text of a file. Raises OutputFailed if it cannot be read as UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise OutputFailed(
            f"cannot append to {file}: {problem}",
            hint="--existing skip keeps existing texts, --existing overwrite replaces them",
        ) from problem


def text_format(suffix: str) -> ExportFormat:
    """The format of text files with this suffix."""
    return ExportFormat(
        partial(write, suffix=suffix),
        is_folder=True,
        is_merged=True,
        max_one="answers",
        suffixes=frozenset({suffix}),
        options=frozenset({"prepend", "append", "existing"}),
    )


TXT = text_format(".txt")
CAPTION = text_format(".caption")
