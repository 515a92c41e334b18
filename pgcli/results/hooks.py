"""The hooks of a run: what its options and its question have made of rows as they are saved."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pgcli import registry
from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.pipeline.request.options import OutputOptions
from pgcli.records import Answer, Item
from pgcli.results.drawings.drawings import Drawings, check_draw
from pgcli.results.gallery.page import check_page
from pgcli.results.row_hook import NullHook, RowHook
from pgcli.results.sidecars import Sidecars
from pgcli.rows import RowSchema, json_text
from pgcli.stores import Reader
from pgcli.tasks import AnyQuestion

ENDING = re.compile(r"\.[A-Za-z0-9_-]{1,16}")

#: Writes the page of a result file.
WritePage = Callable[[Path], object]


def check_hooks(
    options: OutputOptions, sources: Sequence[str] = (), *, resumes: bool = False
) -> None:
    """Raise for what hooks cannot write, before the input is opened.

    A resumed run may draw into its own folder. Raises UsageError, OutputExists and OutputFailed.
    """
    ending, not_texts = options.sidecar, IMAGE_ENDINGS.union(registry.names("manifests"))
    if ending is not None and (not ENDING.fullmatch(ending) or ending.lower() in not_texts):
        raise UsageError(
            f"--sidecar {ending} is not an ending of text files", hint="--sidecar .txt, or .caption"
        )
    if options.draw is not None:
        check_draw(options.draw, sources, overwrite=options.overwrite, resumes=resumes)
    if options.view is not None:
        rows = [] if options.output == "-" else [options.output]
        check_page(options.view, "--view", rows=rows, sources=sources, overwrite=options.overwrite)


def make_hooks(
    options: OutputOptions,
    question: AnyQuestion,
    *,
    limits: ImageLimits | None = None,
    reader: Reader | None = None,
    write_page: WritePage | None = None,
) -> list[RowHook]:
    """The hooks of a run. Nothing is created before the first row.

    `reader` fetches images at addresses once more; `write_page` writes the page of `--view`.
    """
    hooks: list[RowHook] = []
    if options.sidecar is not None:
        has_rows = options.output != "-" or options.format == "jsonl"
        is_only_output = not (has_rows or options.draw or options.view)
        sidecars = Sidecars(
            options.sidecar,
            options.prepend or "",
            options.append or "",
            overwrite=options.overwrite,
            is_only_output=is_only_output,
        )
        hooks.append(sidecars)
    if options.draw is not None:
        drawings = Drawings(options.draw, labels=question.objects, limits=limits, reader=reader)
        hooks.append(drawings)
    if options.view is not None and write_page is not None:
        is_kept = options.output == "-" or options.format == "text"
        hooks.append(Page(None if is_kept else Path(options.output), question, write_page))
    return hooks


class Page(NullHook):
    """Writes the page of a run at its end, from the rows of its output.

    Where these cannot be read again (None), they are kept in a temporary file until then.
    """

    def __init__(self, rows: Path | None, question: AnyQuestion, write_page: WritePage):
        self._rows, self._write_page = rows, write_page
        self._schema = RowSchema(
            extras=question.extra_columns, base=question.columns, float16=question.float16
        )
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Keep the row if the output cannot be read again. Raises OutputFailed."""
        if self._rows is not None and self._folder is None:
            return
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="pgcli-")
                self._rows = Path(self._folder.name) / "answers.jsonl"
            assert self._rows is not None
            with self._rows.open("a", encoding="utf-8") as file:
                file.write(json_text(self._schema.row(answer)) + "\n")
        except OSError as problem:
            raise OutputFailed(
                f"cannot keep rows in {tempfile.gettempdir()} until the page is written: "
                f"{problem.strerror or problem}",
                hint="free some space there, set TMPDIR to another folder, or leave --view out",
            ) from problem

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        """Write the page if the run is complete. Raises the errors of `pgcli view`."""
        try:
            if complete and self._rows is not None:
                self._write_page(self._rows)
        finally:
            if self._folder is not None:
                self._folder.cleanup()
        return ()
