"""Writes the text of each image to a file of its own; what a person wrote or edited is kept."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from pgcli.errors import OutputFailed
from pgcli.printable import encodable
from pgcli.stores.files import read_text
from pgcli.views.output_folder import write_below
from pgcli.views.written_texts import WrittenTexts

#: How an existing text is treated; prepend and append add the new text to it.
ExistingTexts = Literal["keep", "overwrite", "prepend", "append"]
#: What became of a text: an `edited` one is kept although texts are overwritten.
Outcome = Literal["written", "kept", "edited"]

MAX_NAME_BYTES = 255  # of file systems


@dataclass(frozen=True)
class TextOptions:
    """The words around each text, and how existing texts are treated.

    `overwrite_edited` replaces texts that pgcli did not write or that were edited, too.
    """

    prepend: str = ""
    append: str = ""
    existing: ExistingTexts = "keep"
    overwrite_edited: bool = False


@dataclass
class TextNames:
    """Gives each image's text a unique name, also on file systems that ignore case.

    If `a.jpg` has `a.txt`, `a.png` gets `a.png.txt`; so does an image where the text of an earlier
    run is another's.
    """

    suffix: str
    written: WrittenTexts = field(default_factory=WrittenTexts)
    taken: set[int] = field(default_factory=set)  # hashes take less memory than millions of names

    def own(self, image: str) -> str:
        """The name of an image's text if no other text has it."""
        return str(PurePosixPath(image).with_suffix(self.suffix))

    def claim(self, image: str) -> str | None:
        """A free name for an image's text, or None if there is none that file systems allow."""
        for name in (self.own(image), image + self.suffix):
            key = hash(unicodedata.normalize("NFC", name).casefold())
            is_short = len(os.fsencode(Path(name).name)) <= MAX_NAME_BYTES
            if key not in self.taken and is_short and not self._is_of_another(Path(name), image):
                self.taken.add(key)
                return name
        return None

    def _is_of_another(self, file: Path, image: str) -> bool:
        """Whether the file is the text of another image that exists."""
        if not os.path.lexists(file):
            return False
        owner = self.written.image_of(file)
        return owner not in (None, Path(image).name) and (file.parent / str(owner)).exists()


class TextFiles:
    """The texts of a run or an export. `counts` are those of their outcomes."""

    def __init__(self, suffix: str, options: TextOptions, *, token: str, hint: str):
        self.options = options
        self.counts: Counter[Outcome] = Counter()
        self.written = WrittenTexts()
        self.names = TextNames(suffix, self.written)
        self._token, self._hint = token, hint

    def keeps(self, file: Path) -> bool:
        """Whether there is a text that is kept whatever the answer is."""
        existing = self.options.existing
        if existing in ("prepend", "append") or not os.path.lexists(file):
            return False
        return existing == "keep" or self._is_edited(file)

    def write(self, folder: str, name: str, answer: str | None, image: str) -> Outcome:
        """Write the answer to `folder/name` as the options say. Raises OutputFailed."""
        outcome = self._write(folder, name, answer, image)
        self.counts[outcome] += 1
        return outcome

    def _write(self, folder: str, name: str, answer: str | None, image: str) -> Outcome:
        file, answer = Path(folder) / name, encodable(answer or "")
        text = encodable(self.options.prepend) + answer + encodable(self.options.append)
        exists = os.path.lexists(file)
        is_edited = exists and self._is_edited(file)
        if self.keeps(file):
            return "kept" if self.options.existing == "keep" else "edited"
        if exists and self.options.existing in ("prepend", "append"):
            old = None if file.is_symlink() else read_existing(file).rstrip("\n")
            if old is None or (text := self._joined(old, answer)) == old:
                return "kept"
        data = f"{text}\n".encode()
        if not is_edited:
            # before the text: a process that is killed in between leaves a text that is known
            self.written.add(file, Path(image).name, data)
        replace = self.options.existing != "keep"
        is_written = write_below(
            folder, name, data, token=self._token, hint=self._hint, replace=replace
        )
        return "written" if is_written else "kept"

    def _is_edited(self, file: Path) -> bool:
        """Whether an existing file has a text that is not as pgcli wrote it. A folder has none."""
        if self.options.overwrite_edited or (file.is_dir() and not file.is_symlink()):
            return False
        return not self.written.is_unchanged(file)

    def _joined(self, old: str, answer: str) -> str:
        """Both texts, with a blank between them where `--prepend` or `--append` bring none.

        Words are added once: a text that has the new one stays as it is, so that a run may be
        resumed, and one that has the answer gets only the words around it.
        """
        prepend, append = encodable(self.options.prepend), encodable(self.options.append)
        text = f"{prepend}{answer}{append}"
        if not old:
            return text
        if self.options.existing == "append":
            if has_words(old[::-1], f"{answer}{append}"[::-1]):
                return old
            is_there = has_words(old[::-1], answer[::-1])
            return old + (append if is_there else text if prepend else f" {text}")
        if has_words(old, f"{prepend}{answer}"):
            return old
        return (prepend if has_words(old, answer) else text if append else f"{text} ") + old


def has_words(text: str, beginning: str) -> bool:
    """Whether a text begins with these whole words, of which the last may end in a blank."""
    rest = text.removeprefix(beginning)
    is_cut = rest[:1].isalnum() and beginning[-1:].isalnum()
    return text.startswith(beginning) and not is_cut


def read_existing(file: Path) -> str:
    """The text of a file. Raises OutputFailed if it cannot be read as UTF-8."""
    try:
        return read_text(file)
    except (OSError, ValueError) as problem:
        raise OutputFailed(
            f"cannot add to {file}: {problem}",
            hint="--existing keep keeps existing texts, --existing overwrite replaces them",
        ) from problem
