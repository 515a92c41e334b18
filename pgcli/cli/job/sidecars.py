"""--sidecar: each picture's answer in a text file of its own beside it, as trainers expect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from pgcli.cli.job.draw.painter import NotDrawing
from pgcli.cli.job.plan import Plan
from pgcli.errors import UsageError
from pgcli.printable import encodable
from pgcli.records import Answer, Item
from pgcli.sources.endings import IMAGE_ENDINGS
from pgcli.sources.paths import url_scheme
from pgcli.sources.readers import READERS
from pgcli.state.atomic_file import link_if_free
from pgcli.state.write_errors import wrap_write_errors
from pgcli.views.exports.texts import TextNames

ENDING = re.compile(r"\.[A-Za-z0-9_-]{1,16}")


def open_sidecars(plan: Plan) -> NotDrawing:
    """What writes files as `--sidecar` says. Raises UsageError for what cannot be meant."""
    ending = plan.options.output.sidecar
    if ending is None:
        return NotDrawing()
    if not ENDING.fullmatch(ending) or ending.lower() in IMAGE_ENDINGS | READERS.keys():
        raise UsageError(
            f"--sidecar {ending} is no ending for texts", hint="--sidecar .txt, or .caption"
        )
    if plan.prompts > 1:
        raise UsageError(
            f"--sidecar writes one answer for a picture, and there are {plan.prompts} prompts",
            hint="ask one prompt in each run, with an ending each: --sidecar .one, .two",
        )
    return SidecarHook(ending, overwrite=plan.options.output.overwrite)


class SidecarHook(NotDrawing):
    """Writes `photo.txt` beside `photo.jpg`; where another picture has that, `photo.jpg.txt`.

    Each is there as a whole or not at all. One that was there before stays, unless it may be
    overwritten. Errors write nothing, nor do pictures that are no files. Raises OutputFailed.
    """

    def __init__(self, ending: str, *, overwrite: bool):
        self._ending = ending
        self._overwrite = overwrite
        self._paths: dict[int, str | None] = {}
        self._names = TextNames(ending)
        self._written = self._left = self._nameless = 0

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each one's place remembered until its row is saved."""
        for item in items:
            is_here = item.path is not None and url_scheme(item.path) is None
            self._paths[item.index] = item.path if is_here else None
            yield item

    def draw(self, answer: Answer) -> None:
        """Write the row's answer beside its picture. To be called for every row, in their order."""
        path = self._paths.pop(answer.index)
        target = self._claimed(path)
        if path is None or answer.error is not None:
            return
        if target is None:
            self._nameless += 1
        elif self._put(target, encodable(answer.answer or "") + "\n"):
            self._written += 1
        else:
            self._left += 1

    def skip(self, item: Item) -> None:
        """Leave out a row that was saved before; its file's name stays its own."""
        self._claimed(self._paths.pop(item.index))

    def told(self) -> str:
        """What was written, and what was there."""
        left = f"; {self._left:,} that were there stay as they are" if self._left else ""
        none = f"; {self._nameless:,} not written, as no name was left" if self._nameless else ""
        return f"{self._written:,} files ending in {self._ending}{left}{none}"

    def _claimed(self, path: str | None) -> Path | None:
        """Where the picture's text goes, a name that no other picture of this run has.

        None where both names are taken or longer than file systems take.
        """
        if path is None or not PurePath(path).name:  # `.` and `/`, of which there is no picture
            return None
        name = self._names.claim(path)
        return None if name is None else Path(name)

    def _put(self, target: Path, text: str) -> bool:
        """Write the file; False where there is one that may not be replaced."""
        beside = target.with_name(f".pgcli-{os.getpid()}.part")
        with wrap_write_errors(target):
            if not self._overwrite and os.path.lexists(target):
                return False
            try:
                beside.write_text(text, encoding="utf-8")
                if self._overwrite:
                    beside.replace(target)
                    return True
                return link_if_free(beside, target)
            finally:
                beside.unlink(missing_ok=True)
