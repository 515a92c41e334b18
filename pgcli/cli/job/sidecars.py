"""--sidecar: each image's answer in a text file of the same name, as trainers expect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from pgcli.cli.job.plan import Plan
from pgcli.cli.job.row_hooks import RowHook
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


def check_sidecars(plan: Plan) -> None:
    """Raise UsageError for a `--sidecar` ending that is not one of texts, or several prompts."""
    ending, prompts = plan.options.output.sidecar, plan.prompts_per_image
    if ending is None:
        return
    if not ENDING.fullmatch(ending) or ending.lower() in IMAGE_ENDINGS | READERS.keys():
        raise UsageError(
            f"--sidecar {ending} is not an ending of text files", hint="--sidecar .txt, or .caption"
        )
    if prompts > 1:
        raise UsageError(
            f"--sidecar writes one answer for each image, and there are {prompts} prompts",
            hint="ask one prompt in each run, with different endings: --sidecar .one, .two",
        )


def open_sidecars(plan: Plan) -> SidecarHook | None:
    """The hook of `--sidecar`, if it is given."""
    ending = plan.options.output.sidecar
    overwrite = plan.options.output.overwrite
    return None if ending is None else SidecarHook(ending, overwrite=overwrite)


class SidecarHook(RowHook):
    """Writes `photo.txt` next to `photo.jpg`, or `photo.jpg.txt` if another image has that name.

    A file is written completely or not at all. An existing one is kept unless `overwrite`. Error
    rows and images that are not files have none. Raises OutputFailed.
    """

    def __init__(self, ending: str, *, overwrite: bool):
        self._ending = ending
        self._overwrite = overwrite
        self._paths: dict[int, str | None] = {}
        self._names = TextNames(ending)
        self._written = self._kept = self._unnamed = 0

    def wrap_items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; each one's path is kept until its row is saved."""
        for item in items:
            is_file = item.path is not None and url_scheme(item.path) is None
            self._paths[item.index] = item.path if is_file else None
            yield item

    def on_row(self, answer: Answer) -> None:
        """Write the row's answer. To be called for every row in order."""
        path = self._paths.pop(answer.index)
        target = self._target(path)
        if path is None or answer.error is not None:
            return
        if target is None:
            self._unnamed += 1
        elif self._write(target, encodable(answer.answer or "") + "\n"):
            self._written += 1
        else:
            self._kept += 1

    def on_skipped_row(self, item: Item) -> None:
        """Reserve the file name of a row that is saved already."""
        self._target(self._paths.pop(item.index))

    def summary(self) -> str:
        """How many files were written, kept, or left without a name."""
        kept = f"; {self._kept:,} that exist are kept" if self._kept else ""
        unnamed = f"; {self._unnamed:,} not written, as no name was left" if self._unnamed else ""
        return f"{self._written:,} files ending in {self._ending}{kept}{unnamed}"

    def _target(self, path: str | None) -> Path | None:
        """The text file of the image, with a name that no other image of this run has.

        None where both names are taken or longer than file systems allow.
        """
        if path is None or not PurePath(path).name:  # `.` and `/` are not images
            return None
        name = self._names.claim(path)
        return None if name is None else Path(name)

    def _write(self, target: Path, text: str) -> bool:
        """Write the file; return False if it exists and may not be replaced."""
        part = target.with_name(f".pgcli-{os.getpid()}.part")
        with wrap_write_errors(target):
            if not self._overwrite and os.path.lexists(target):
                return False
            try:
                part.write_text(text, encoding="utf-8")
                if self._overwrite:
                    part.replace(target)
                    return True
                return link_if_free(part, target)
            finally:
                part.unlink(missing_ok=True)
