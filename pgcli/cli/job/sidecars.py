"""--sidecar: each image's answer in a text file of the same name, as trainers expect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from pgcli.cli.job.input import RunInput
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.row_hooks import RowHook
from pgcli.cli.options import OutputOptions
from pgcli.cli.text_options import EDITED, NOT_RECORDED, text_options
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.wording import count
from pgcli.errors import UsageError
from pgcli.records import Answer, Item
from pgcli.sinks.saved_answers import SavedAnswers
from pgcli.sources.endings import IMAGE_ENDINGS
from pgcli.sources.paths import url_scheme
from pgcli.sources.readers import READERS
from pgcli.views.text_files import TextFiles, TextOptions

ENDING = re.compile(r"\.[A-Za-z0-9_-]{1,16}")
HINT = "free disk space, or check the folder's permissions; the same command writes the rest"


def check_sidecars(plan: Plan) -> None:
    """Raise UsageError for a `--sidecar` ending that is not one of texts, or several prompts."""
    output, prompts = plan.options.output, plan.prompts_per_image
    ending = output.sidecar
    sidecar_options(output)
    if ending is None:
        check_no_text_options(output)
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


def check_no_text_options(output: OutputOptions) -> None:
    """Raise UsageError for an option of texts without `--sidecar`."""
    for name in ("prepend", "append", "existing", "overwrite_edited"):
        if getattr(output, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is for the texts of --sidecar",
                hint=f"add --sidecar .txt, or leave {option} out",
            )


def sidecar_options(output: OutputOptions) -> TextOptions:
    """How texts are written. Raises UsageError."""
    return text_options(
        output.prepend,
        output.append,
        output.existing,
        overwrite=output.overwrite,
        overwrite_edited=output.overwrite_edited,
    )


def make_sidecars(input: RunInput) -> SidecarHook | None:
    """The hook of `--sidecar`, if it is given."""
    output = input.options.output
    return None if output.sidecar is None else SidecarHook(output.sidecar, output)


def is_only_output(output: OutputOptions) -> bool:
    """Whether only texts are to be saved: rows on standard output are a view of the new ones."""
    has_rows = output.output != "-" or output.format == "jsonl"
    return not (has_rows or output.draw or output.view or output.inline)


def count_kept_texts(input: RunInput, screen: Screen) -> int:
    """The number of images that need no answer, as their text is kept; 0 where that is unknown."""
    output = input.options.output
    hook = make_sidecars(input)
    if hook is None or input.images is None or not is_only_output(output):
        return 0
    with screen.progress("looking for texts", input.images, unit="images") as progress:
        for _ in hook.wrap_items(progress.track(input.items(lambda row: True))):
            pass
    return hook.not_asked


class SidecarHook(RowHook):
    """Writes `photo.txt` next to `photo.jpg`, or `photo.jpg.txt` if another image has that name.

    A file is written completely or not at all. Error rows and images that are not files have none.
    Rows that an earlier run saved have a text, too. Raises OutputFailed.
    """

    def __init__(self, ending: str, output: OutputOptions):
        token = str(os.getpid())
        self._ending = ending
        self._texts = TextFiles(ending, sidecar_options(output), token=token, hint=HINT)
        self._saved = SavedAnswers(Path(output.output))
        self._targets: dict[int, tuple[str, str | None] | None] = {}
        self._unnamed = self._renamed = 0
        self._example = ""
        self._skips_kept = is_only_output(output)

    def wrap_items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, without those whose text is kept where texts are the only output.

        The name of each one's text is chosen here, in the order of the input.
        """
        for item in items:
            target = self._claim(item)
            if self._skips_kept and target and target[1] and self._texts.keeps(Path(target[1])):
                self.not_asked += 1
                continue
            self._targets[item.index] = target
            yield item

    def on_row(self, answer: Answer) -> None:
        """Write the row's answer. To be called for every row in order."""
        self._write(answer.index, answer.answer, is_error=answer.error is not None)

    def on_skipped_row(self, item: Item, row_index: int) -> None:
        """Write the answer of a row that an earlier run saved."""
        row = self._saved.find(row_index)
        if row is None:
            self._targets.pop(item.index)
        else:
            self._write(item.index, row["answer"], is_error=row["error"] is not None)

    def summary(self) -> str:
        """How many files were written, kept, or left without a name."""
        counts, problem = self._texts.counts.copy(), self._texts.written.problem
        is_overwriting = self._texts.options.existing == "overwrite"
        counts["edited" if is_overwriting else "kept"] += self.not_asked
        notes = [
            (counts["kept"], f"{counts['kept']:,} that exist are kept"),
            (counts["edited"], f"{counts['edited']:,} {EDITED}"),
            (self.not_asked, f"the images of {self.not_asked:,} of these are not asked"),
            (
                self._renamed,
                f"{self._renamed:,} named as {self._example}: another image has the shorter name",
            ),
            (self._unnamed, f"{self._unnamed:,} not written, as no name was left"),
            (problem and counts["written"], NOT_RECORDED.format(problem)),
        ]
        written = f"{count(counts['written'], 'file')} ending in {self._ending}"
        return "; ".join([written, *(note for number, note in notes if number)])

    def _claim(self, item: Item) -> tuple[str, str | None] | None:
        """The image's path and the name of its text; the latter is None where both are taken or
        longer than file systems allow. None for what is not a file.
        """
        path = item.path
        if path is None or url_scheme(path) is not None or not PurePath(path).name:
            return None  # `.` and `/` are not images
        return path, self._texts.names.claim(path)

    def _write(self, index: int, answer: str | None, *, is_error: bool) -> None:
        target = self._targets.pop(index)
        if target is None or is_error:
            return
        path, name = target
        if name is None:
            self._unnamed += 1
            return
        if name != self._texts.names.own(path):
            self._renamed += 1
            self._example = self._example or Path(name).name
        folder = os.path.dirname(name) or "."  # noqa: PTH120 - Path drops a leading ./
        self._texts.write(folder, Path(name).name, answer, path)
