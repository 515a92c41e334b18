"""A text for each picture, beside it or in a folder, as trainers of LoRAs read them."""

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
from pgcli.views.exports.entry import Entry, Format, Wanted
from pgcli.views.output_folder import write_below

LONGEST_NAME = 255  # bytes that file systems take
NO_FILE = Fault("missing", "There is no such file here, beside which a text could lie.")
HINT = "make room or mend the place, or name a folder with -o"


def write(target: Path, entries: Iterable[Entry], wanted: Wanted, *, ending: str) -> None:
    """Write a text for each picture below the folder; beside the pictures where that is `Path()`.

    Each is there as a whole or not at all. Where `a.jpg` has `a.txt`, `a.png` has `a.png.txt`.
    """
    names, is_beside = Names(ending), target == Path()
    for entry in entries:
        place = entry.path if is_beside else str(target / entry.name)
        own = place if is_beside else str(target / entry.own)
        # a row from elsewhere names what it likes: texts are put beside pictures that are there
        if place is None or own is None or (is_beside and not os.path.isfile(place)):  # noqa: PTH113
            wanted.tally.missing.add(entry.image, NO_FILE)
            continue
        name = names.claim(place)
        if name is None:
            wanted.tally.nameless += 1
            continue
        if name != names.own(own):
            wanted.tally.rename(names.own(own), name)
        folder = os.path.dirname(place) or "." if is_beside else str(target)  # noqa: PTH120
        if put(folder, os.path.relpath(name, folder), text_of(entry, wanted), wanted):
            wanted.tally.pictures += 1
        else:
            wanted.tally.left += 1


def text_of(entry: Entry, wanted: Wanted) -> str:
    """The answer between what is to be before and after it."""
    return encodable(wanted.before + (entry.rows[0]["answer"] or "") + wanted.after)


@dataclass
class Names:
    """Gives each picture's text a name that no other has, also where capitals tell nothing."""

    ending: str
    taken: set[int] = field(default_factory=set)  # hashes, as names of millions would weigh

    def own(self, picture: str) -> str:
        """The name that a picture's text has where no other is in its way."""
        return str(PurePosixPath(picture).with_suffix(self.ending))

    def claim(self, picture: str) -> str | None:
        """The name of a picture's text; None where none is left that file systems take."""
        for name in (self.own(picture), picture + self.ending):
            key = hash(unicodedata.normalize("NFC", name).casefold())
            if key not in self.taken and len(os.fsencode(Path(name).name)) <= LONGEST_NAME:
                self.taken.add(key)
                return name
        return None


def put(folder: str, name: str, text: str, wanted: Wanted) -> bool:
    """Write the text as `wanted` says of what is there; False where that stays."""
    file = Path(folder) / name
    if os.path.lexists(file):
        if wanted.existing == "skip" or (wanted.existing == "append" and file.is_symlink()):
            return False
        if wanted.existing == "append":
            known = known_text(file).rstrip("\n")
            text = known + (" " if known and not wanted.before else "") + text
    write_below(folder, name, f"{text}\n".encode(), token=f"export-{os.getpid()}", hint=HINT)
    return True


def known_text(file: Path) -> str:
    """What a text holds. Raises OutputFailed where it cannot be read as one."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise OutputFailed(
            f"cannot add to {file}: {problem}",
            hint="--existing skip leaves what is there, --existing overwrite replaces it",
        ) from problem


def made(ending: str) -> Format:
    """The format of texts in files with this ending."""
    return Format(
        partial(write, ending=ending),
        is_folder=True,
        merged=True,
        one_of="answers",
        endings=frozenset({ending}),
        takes=frozenset({"prepend", "append", "existing"}),
    )


TXT = made(".txt")
CAPTION = made(".caption")
