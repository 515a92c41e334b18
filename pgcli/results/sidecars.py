"""Texts beside images, as trainers read them: photo.txt for photo.jpg, one file for each answer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath

from pgcli.records import Answer, Item
from pgcli.results.file_names import LONGEST_NAME, name_key
from pgcli.results.row_hook import RowHook, write_below
from pgcli.stores.urls import url_scheme
from pgcli.text import count, encodable, with_notes

HINT = "free disk space, or check the folder's permissions; the same command writes the rest"


class Sidecars(RowHook):
    """Writes `photo.txt` next to `photo.jpg`, or `photo.jpg.txt` if another image has that name.

    An existing text is kept, or replaced with `overwrite`. Saved rows of an
    earlier run get a text too; failed rows and images that are not files get none. With
    `is_only_output`, images with a kept text are skipped. Exports use `claim` and `write`.
    """

    def __init__(
        self,
        ending: str,
        prepend: str = "",
        append: str = "",
        *,
        overwrite: bool = False,
        is_only_output: bool = False,
    ):
        self._ending, self._prepend, self._append = ending, prepend, append
        self._overwrite, self._is_only_output = overwrite, is_only_output
        self._taken: set[bytes] = set()  # takes less memory than millions of names
        self._claimed: dict[int, str | None] = {}
        self._renamed_example = ""
        #: Texts that are `written`, or exist and are `kept`; images that are `unnamed`, `renamed`
        #: because another has their name, or `skipped`.
        self.counts: Counter[str] = Counter()

    def skips(self, item: Item) -> bool:
        """Whether the item's text is kept with any answer. Claims the name of the text."""
        if item.path is None or not is_file(item):
            return False
        name = self.claim(item.path)
        if name is not None and self._is_only_output and self._is_kept(name):
            self.counts.update(("kept", "skipped"))
            return True
        self._claimed[item.index] = name
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Write the row's answer. Raises OutputFailed."""
        if item.path is None or not is_file(item):
            return
        is_claimed = item.index in self._claimed
        name = self._claimed.pop(item.index) if is_claimed else self.claim(item.path)
        if answer.error is not None:
            return  # its name stays claimed, as the row may be retried
        if name is None:
            self.counts["unnamed"] += 1
            return
        if name != self.own_name(item.path):
            self.counts["renamed"] += 1
            self._renamed_example = self._renamed_example or Path(name).name
        self.write(name, answer.answer)

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        notes = [
            (self.counts["kept"], "files kept unchanged"),
            (self.counts["skipped"], "images skipped"),
            (self.counts["renamed"], f"files named as {self._renamed_example}: the name is taken"),
            (self.counts["unnamed"], "files not written: the name is too long or taken"),
        ]
        written = f"{count(self.counts['written'], 'file')} ending in {self._ending}"
        return [("sidecars", with_notes(written, notes))]

    def own_name(self, image: str) -> str:
        """The name of an image's text, unless another text has the name."""
        return str(PurePosixPath(image).with_suffix(self._ending))

    def claim(self, image: str) -> str | None:
        """A free name for an image's text, or None if both names are taken or too long.

        Names differ also on file systems that ignore case. If `a.jpg` has `a.txt`, `a.png` gets
        `a.png.txt`.
        """
        for name in (self.own_name(image), image + self._ending):
            key = name_key(name)
            if key not in self._taken and len(os.fsencode(Path(name).name)) <= LONGEST_NAME:
                self._taken.add(key)
                return name
        return None

    def write(self, name: str, answer: str | None, *, below: str | None = None) -> None:
        """Write an answer to the file atomically, or keep an existing text.

        Missing folders `below` that one are created. Raises OutputFailed.
        """
        is_written = False
        if not self._is_kept(name):
            text = "".join(map(encodable, (self._prepend, answer or "", self._append, "\n")))
            folder = below or os.path.dirname(name) or "."  # noqa: PTH120 - Path drops a leading ./
            leaf = os.path.relpath(name, below) if below else Path(name).name
            is_written = write_below(
                folder,
                leaf,
                text.encode(),
                hint=HINT,
                replace=self._overwrite,
            )
        self.counts["written" if is_written else "kept"] += 1

    def _is_kept(self, name: str) -> bool:
        return not self._overwrite and os.path.lexists(name)


def is_file(item: Item) -> bool:
    """Whether the item's image is a local file of its own."""
    path = item.path
    if path is None or item.data is not None or item.span is not None:
        return False
    return url_scheme(path) is None and bool(PurePath(path).name)  # `.` and `/` are not images
