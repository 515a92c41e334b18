"""--view: a page of a run's answers at its end, those to each prompt beside each other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from pgcli.cli.job.draw.painter import NotDrawing
from pgcli.cli.job.output import layout_of
from pgcli.cli.job.plan import Plan, reading
from pgcli.cli.result_files.check_target import check_target
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputExists, UsageError
from pgcli.records import Answer, Item
from pgcli.rows import json_text
from pgcli.sinks.reader import read_results
from pgcli.sources import open_sources
from pgcli.state.write_errors import wrap_write_errors
from pgcli.tasks import columns

MOST = 6  # prompts beside each other; more would leave none of them room


class NotCompared(NotDrawing):
    """A run without --view: no page is made."""

    def make(self, *, quiet: bool) -> None:
        """Do nothing."""


class HtmlReportHook(NotCompared):
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
        from pgcli.cli.result_files.gallery_page import GalleryOptions, RowGroup, write_gallery

        chosen = self._plan.options
        rows = self._kept if self._is_kept else Path(chosen.output.output)
        asked = GalleryOptions(
            self._page,
            overwrite=True,
            allow_urls=chosen.input.allow_urls,
            allow_private_hosts=chosen.input.allow_private_hosts,
            reopen=self._again,
        )
        parts = [RowGroup(rows, prompt, prompt) for prompt in self._prompts(rows)]
        write_gallery(parts or [RowGroup(rows, rows.name)], asked, Screen(quiet=quiet))
        self._folder.cleanup()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._folder.cleanup()

    def _prompts(self, rows: Path) -> list[str]:
        """The prompts that are shown beside each other, if some are: those of all pictures."""
        asked = self._plan.question.templates or ()
        if not 1 < len(asked) <= MOST or columns(self._plan.question):
            return []
        found = list(dict.fromkeys(row["prompt"] for row in read_results(rows)))
        return found if len(found) > 1 else []

    def _again(self) -> Iterator[Item] | None:
        """The run's input once more, for rows that no record lies beside."""
        plan = self._plan
        if "-" in plan.names:
            return None
        # opened anew: the run's own way to addresses ended with it
        source = open_sources(plan.names, reading(plan.question, plan.options))
        return iter(replace(plan, source=source).items())


def add(file: Path, line: str) -> None:
    with wrap_write_errors(file), file.open("a", encoding="utf-8") as opened:
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
        check_target(Path(page), is_folder=False, overwrite=is_replaced)
    except OutputExists as problem:
        raise OutputExists(
            str(problem), hint="another --view leaves it alone; or remove it"
        ) from problem
    return HtmlReportHook(plan, page)
