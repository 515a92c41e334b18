"""--view: a page of a run's answers at its end, those to each prompt beside each other."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from types import TracebackType

from pgcli.cli.drawing.painter import NotDrawing
from pgcli.cli.output import layout_of
from pgcli.cli.plan import Plan
from pgcli.cli.publishing import check_free
from pgcli.errors import OutputExists, UsageError
from pgcli.records import Answer
from pgcli.rows import json_text
from pgcli.sinks.reading import results
from pgcli.state.writing import writing
from pgcli.tasks import columns

MOST = 6  # prompts beside each other; more would leave none of them room
LONGEST = 40  # characters of a prompt that the page names it by


class NotCompared(NotDrawing):
    """A run without --view: no page is made."""

    def make(self, *, quiet: bool) -> None:
        """Do nothing."""


class Compared(NotCompared):
    """Makes the page of a run's rows; those of a run to standard output are kept till then."""

    def __init__(self, plan: Plan, page: str):
        self._plan, self._page = plan, page
        self._layout = layout_of(plan)
        self._folder = tempfile.TemporaryDirectory(prefix="pgcli-")
        self._kept = Path(self._folder.name) / "answers.jsonl"
        self._is_kept = plan.options.output.output == "-" or plan.options.output.format == "text"

    def draw(self, answer: Answer) -> None:
        """Keep the row, where nothing else does. Raises OutputFailed."""
        if self._is_kept:
            add(self._kept, json_text(self._layout.row(answer)))

    def make(self, *, quiet: bool) -> None:
        """Make the page. Raises what `pgcli view` does."""
        from pgcli.cli import viewing

        chosen = self._plan.options.output
        rows = self._kept if self._is_kept else Path(chosen.output)
        prompts = self._plan.question.templates or ()
        is_split = 1 < len(prompts) <= MOST and not columns(self._plan.question)
        files = self._split(rows) if is_split else [rows]
        asked = viewing.Asked(self._page, None, None, None, None, overwrite=True)
        viewing.view([str(file) for file in files], asked, quiet=quiet)
        self._folder.cleanup()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._folder.cleanup()

    def _split(self, rows: Path) -> list[Path]:
        """The rows in a file for each prompt, named by it."""
        folder = Path(self._folder.name) / "prompts"
        folder.mkdir()
        files: dict[str, Path] = {}
        for row in results(rows):
            prompt = row["prompt"]
            if prompt not in files:
                words = re.sub(r"[^\w ?-]+", " ", prompt)[:LONGEST].strip() or "prompt"
                name, number = words, 1
                while (folder / name).exists():
                    number += 1
                    name = f"{words} {number}"
                files[prompt] = folder / name
                files[prompt].touch()
            add(files[prompt], json_text(row))
        return list(files.values())


def add(file: Path, line: str) -> None:
    with writing(file), file.open("a", encoding="utf-8") as opened:
        opened.write(f"{line}\n")


def open_compared(plan: Plan, *, goes_on: bool = False) -> NotCompared:
    """What makes the page for `--view`, refused here where it must not be written over.

    A run that goes on makes its page anew. Raises UsageError and OutputExists.
    """
    page, output = plan.options.output.view, plan.options.output.output
    if page is None:
        return NotCompared()
    if page == "-" or Path(page).absolute() == Path(output).absolute():
        raise UsageError(f"--view {page} is no file of its own", hint="name a page: --view a.html")
    try:
        is_replaced = goes_on or plan.options.output.overwrite
        check_free(Path(page), is_folder=False, overwrite=is_replaced)
    except OutputExists as problem:
        raise OutputExists(
            str(problem), hint="another --view leaves it alone; or remove it"
        ) from problem
    return Compared(plan, page)
