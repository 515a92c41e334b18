"""The final form of an output, and the saved rows in it and in open files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pgcli.output import FOLDER, load_format, part_format
from pgcli.output.lines import LineFormat
from pgcli.pipeline.state.lines import Segment, without_overlap
from pgcli.pipeline.state.lines_form import LinesForm
from pgcli.pipeline.state.open_rows import OpenRows
from pgcli.pipeline.state.parts import Parts, ReadKept
from pgcli.pipeline.state.parts_form import PartsForm
from pgcli.pipeline.state.record import RunRecord
from pgcli.rows import RowSchema
from pgcli.stores import LocalStore, open_folder
from pgcli.stores.urls import is_in_object_store

Form: TypeAlias = LinesForm | PartsForm


def is_of_parts(output: str) -> bool:
    """Whether an output is a folder of Parquet files."""
    return output.endswith(FOLDER) or is_in_object_store(output) or Path(output).is_dir()


def open_form(
    output: str,
    record: Callable[[], RunRecord],
    early: OpenRows,
    *,
    schema: RowSchema | None = None,
    kept: ReadKept = lambda start, stop: None,
    create: bool = False,
) -> Form:
    """The final form of an output, by its name; with `create`, a missing folder is created.

    Reading needs no schema and no kept columns. Raises FileNotFoundError for a missing folder.
    """
    path, schema = Path(output), schema or RowSchema()
    if is_of_parts(output):
        folder = open_folder(output, create=create, follow=True)
        return PartsForm(folder, part_format(), record, schema, kept, early=early)
    beside, format = LocalStore(path.parent, follow=True), load_format(path)
    if isinstance(format, LineFormat):
        return LinesForm(beside, path, early)
    return PartsForm(beside, format, record, schema, kept, path.name, early=early)


def open_parts(output: str, record: RunRecord, schema: RowSchema, kept: ReadKept) -> Parts:
    """The files of a folder, for a worker that writes whole files."""
    folder = open_folder(output, create=True, follow=True)
    return Parts(folder, part_format(), lambda: record, schema, kept)


def saved_segments(form: Form, early: OpenRows) -> list[Segment]:
    """The saved rows in an output and in open files.

    Raises OutputFailed and OutputExists.
    """
    # open files first: rows of files that disappear meanwhile are in the output
    open_segments = early.segments()
    return [*form.segments(), *open_segments]


def saved_rows(
    form: Form, early: OpenRows, segments: Iterable[Segment]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The saved rows in order, each once, with their numbers."""
    for segment, start, _ in without_overlap(segments):
        rows = (early if segment.name else form).rows(segment, start)
        yield from enumerate(rows, start)


def error_rows(
    form: Form, early: OpenRows, segments: Iterable[Segment]
) -> Iterator[tuple[int, str]]:
    """The numbers and codes of saved failed rows, in order."""
    for segment, start, _ in without_overlap(segments):
        if segment.errors:
            yield from (early if segment.name else form).error_rows(segment, start)
