"""--view: a page of the answers at the end of the run, several prompts side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from pgcli.cli.job.input import RunInput, open_items, source_options
from pgcli.cli.job.plan import Plan, check_not_an_input
from pgcli.cli.job.row_hooks import RowHook
from pgcli.cli.result_files.check_target import check_target
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputExists, UsageError
from pgcli.records import Answer, Item
from pgcli.rows import json_text
from pgcli.sinks.reader import read_results
from pgcli.state.write_errors import wrap_write_errors
from pgcli.tasks import template_columns

MAX_PROMPTS = 6  # side by side; with more, the columns of the page are too narrow


class HtmlReportHook(RowHook):
    """Writes the page of a run. The rows of a run to standard output are kept until then."""

    def __init__(self, input: RunInput, page: str):
        plan = input.plan
        self._input, self._plan, self._page = input, plan, page
        self._folder = tempfile.TemporaryDirectory(prefix="pgcli-")
        self._kept_rows = Path(self._folder.name) / "answers.jsonl"
        output = plan.options.output
        self._keeps_rows = output.output == "-" or output.format == "text"

    def on_row(self, answer: Answer) -> None:
        """Keep the row if the output cannot be read again. Raises OutputFailed."""
        if self._keeps_rows:
            append_line(self._kept_rows, json_text(self._input.row_schema.row(answer)))

    def on_complete(self, *, quiet: bool) -> None:
        """Write the page. Raises the errors of `pgcli view`."""
        from pgcli.cli.result_files.gallery_page import GalleryOptions, RowGroup, write_gallery

        options = self._plan.options
        rows = self._kept_rows if self._keeps_rows else Path(options.output.output)
        asked = GalleryOptions(
            output=self._page,
            overwrite=True,
            allow_urls=options.input.allow_urls,
            allow_private_hosts=options.input.allow_private_hosts,
            reopen=self._reopen_input,
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
        """The prompts shown side by side: those of every image, if there are several."""
        templates = self._plan.question.templates or ()
        if not 1 < len(templates) <= MAX_PROMPTS or template_columns(self._plan.question):
            return []
        found = list(dict.fromkeys(row["prompt"] for row in read_results(rows)))
        return found if len(found) > 1 else []

    def _reopen_input(self) -> Iterator[Item] | None:
        """The items of the run again, for rows without a state folder."""
        plan = self._plan
        if "-" in plan.sources:
            return None
        # with a new reader of URLs: that of the run is closed
        source = open_items(plan.sources, plan.question, source_options(plan))
        return iter(RunInput(plan, source).items())


def append_line(file: Path, line: str) -> None:
    """Append a line to the file. Raises OutputFailed."""
    with wrap_write_errors(file), file.open("a", encoding="utf-8") as opened:
        opened.write(f"{line}\n")


def check_report(plan: Plan) -> None:
    """Raise UsageError or OutputExists for a `--view` page that cannot be written."""
    page, output = plan.options.output.view, plan.options.output.output
    if page is None:
        return
    if page == "-" or Path(page).absolute() == Path(output).absolute():
        raise UsageError(
            f"--view {page} is not a file of its own", hint="name a page: --view a.html"
        )
    from pgcli.cli.result_files.gallery_page import is_page

    check_not_an_input(page, plan.sources, option="--view")
    try:
        is_replaced = plan.options.output.overwrite or is_page(Path(page))
        check_target(Path(page), is_folder=False, overwrite=is_replaced)
    except OutputExists as problem:
        raise OutputExists(
            str(problem), hint="name another page with --view, or remove this one"
        ) from problem


def make_report(input: RunInput) -> HtmlReportHook | None:
    """The hook of `--view`, if it is given."""
    page = input.options.output.view
    return None if page is None else HtmlReportHook(input, page)
