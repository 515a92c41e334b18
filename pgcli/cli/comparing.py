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
from pgcli.records import Answer
from pgcli.rows import json_text
from pgcli.sinks.reading import results
from pgcli.state.writing import writing

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
        files = self._split(rows) if 1 < len(prompts) <= MOST else [rows]
        asked = viewing.Asked(self._page, None, None, None, None, overwrite=chosen.overwrite)
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
                is_free = not (folder / words).exists()
                files[prompt] = folder / (words if is_free else f"{words} {len(files) + 1}")
            add(files[prompt], json_text(row))
        return list(files.values())


def add(file: Path, line: str) -> None:
    with writing(file), file.open("a", encoding="utf-8") as opened:
        opened.write(f"{line}\n")


def open_compared(plan: Plan) -> NotCompared:
    """What makes the page for `--view`, refused here where it must not be written over."""
    page = plan.options.output.view
    if page is None:
        return NotCompared()
    check_free(Path(page), is_folder=False, overwrite=plan.options.output.overwrite)
    return Compared(plan, page)
