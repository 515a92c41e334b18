"""The final form of an output, and the rows that are saved in it and beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.output import FOLDER, load_format, part_format
from pgcli.output.lines import LineFormat
from pgcli.pipeline.state.form import Form, FormContext
from pgcli.pipeline.state.lines_form import LinesForm
from pgcli.pipeline.state.open_files import OpenFiles, Segment, in_order
from pgcli.pipeline.state.table_form import TableForm
from pgcli.stores import LocalStore, open_folder
from pgcli.stores.urls import is_in_object_store


def open_form(output: str, context: FormContext, *, create: bool = False) -> Form:
    """The final form of an output, by its name; a folder is created if it is to be.

    Raises FileNotFoundError for a folder that does not exist.
    """
    path = Path(output)
    if output.endswith(FOLDER) or is_in_object_store(output) or path.is_dir():
        return TableForm(open_folder(output, create=create, follow=True), part_format(), context)
    folder, format = LocalStore(path.parent, follow=True), load_format(path)
    if isinstance(format, LineFormat):
        return LinesForm(folder, path, context.files)
    return TableForm(folder, format, context, path.name)


def saved_segments(form: Form, files: OpenFiles, alive: Collection[str] = ()) -> list[Segment]:
    """The rows that are saved in an output, and beside it in open files of no process `alive`.

    Raises OutputFailed and OutputExists.
    """
    # open files first: the output has the rows of those that go meanwhile
    open_segments = files.segments(alive)
    return [*form.segments(), *open_segments]


def saved_rows(
    form: Form, files: OpenFiles, segments: Iterable[Segment]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The columns of the saved rows in order, with their numbers, each once."""
    for segment, start, _ in in_order(segments):
        rows = (files if segment.name else form).rows(segment, start)
        yield from enumerate(rows, start)


def error_rows(form: Form, files: OpenFiles, segments: Iterable[Segment]) -> Iterator[int]:
    """The numbers of the saved rows with errors, in order."""
    for segment, start, _ in in_order(segments):
        if segment.errors:
            yield from (files if segment.name else form).error_rows(segment, start)
