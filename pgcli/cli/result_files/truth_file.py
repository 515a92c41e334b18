"""Reads what is true of images and prompts: a manifest, a result file, or a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.truth_tables import table_rows
from pgcli.cli.result_files.truth_values import group_values, read_answers, read_boxes, read_masks
from pgcli.cli.result_files.truths import Truths
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.remote import RemoteFile, UrlReader
from pgcli.sources.manifest_file import FileLocation, path_of
from pgcli.sources.paths import display_path, url_scheme
from pgcli.sources.read_options import ReadOptions
from pgcli.tasks.question import normalize

#: The columns of prompts and of answers, the first of which that exists is read.
PROMPT_COLUMNS = ("prompt", "prefix")
ANSWER_COLUMNS = ("answers", "answer", "suffix", "label", "caption", "captions", "text", "texts")


@dataclass(frozen=True)
class TruthColumns:
    """The names of columns, as the command line gives them.

    With an empty prompt column, rows are joined by id alone.
    """

    id: str = "id"
    prompt: str | None = None
    answer: str | None = None


def read_truth(name: str, columns: TruthColumns, url_reader: UrlReader | None = None) -> Truths:
    """The truth in a file or folder, or in a file at an address. Raises UsageError."""
    from pgcli.sources.remote_files import check_readable, usage_errors

    location: FileLocation = name
    if url_scheme(name):
        reader = check_readable(name, ReadOptions(url_reader=url_reader))
        location = RemoteFile(name, reader)
    elif not Path(name).exists():
        raise UsageError(f"{name} does not exist", hint="--truth names a manifest with answers")
    truths = Truths(display_path(name))
    with usage_errors(truths.name) if isinstance(location, RemoteFile) else nullcontext():
        add_truth(location, columns, truths)
    truths.has_prompts &= columns.prompt != ""
    if not truths.by_key:
        raise UsageError(f"{truths.name} has no rows", hint="--truth names a manifest with answers")
    return truths


def add_truth(location: FileLocation, columns: TruthColumns, truths: Truths) -> None:
    """Add what a file or folder says. Raises UsageError."""
    if path_of(location).lower().endswith(".json"):
        from pgcli.cli.result_files.truth_documents import add_document

        check_no_columns(columns, truths)
        add_document(location, truths)
        return
    for position, id_, row in truth_rows(location, columns, truths):
        add_row(truths, id_, row, columns, f"{truths.name}, {position}")


def check_no_columns(columns: TruthColumns, truths: Truths) -> None:
    """Raise UsageError if columns of a document are named, which has none."""
    for option, is_given in (
        ("--id-column", columns.id != TruthColumns.id),
        ("--prompt-column", bool(columns.prompt)),
        ("--answer-column", columns.answer is not None),
    ):
        if is_given:
            raise UsageError(
                f"{option} has no effect on {truths.name}, which is not a table",
                hint="leave it out",
            )


def truth_rows(
    location: FileLocation, columns: TruthColumns, truths: Truths
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The position, the id and the values of each row of a manifest, a folder, or a result file."""
    from pgcli.sources.row_item import row_name

    options = ReadOptions(id_column=columns.id)
    for row in table_rows(location, truths):
        truths.columns |= dict.fromkeys(row.values)
        id_ = row_name(row, options)
        if id_ is None:
            raise UsageError(
                f"{truths.name}, {row.position}: it has neither {columns.id!r} nor a path in "
                "'image'",
                hint="rows are joined by id; --id-column names the column",
            )
        yield row.position, id_, row.values


def add_row(
    truths: Truths, id_: str, row: Mapping[str, Any], columns: TruthColumns, where: str
) -> None:
    """Add the truth of a row; one with an error says nothing. Raises UsageError."""
    if row.get("error") is not None:
        return
    prompt_name = first_column(columns.prompt or None, PROMPT_COLUMNS, row, where)
    answer_name = first_column(columns.answer, ANSWER_COLUMNS, row, where)
    prompt = row.get(prompt_name) if prompt_name else None
    is_prompt = isinstance(prompt, str)
    truths.has_prompts |= is_prompt
    if isinstance(row.get("image"), str):
        truths.images[id_] = row["image"]
    boxes = read_boxes(row, where)
    truth = RowTruth(
        answers=read_answers(row.get(answer_name)) if answer_name else (),
        boxes=boxes,
        masks=read_masks(row.get("masks"), where),
        columns=group_values(row),
    )
    truths.add((id_, normalize(str(prompt)) if is_prompt else None), truth)


def first_column(
    given: str | None, known: Sequence[str], row: Mapping[str, Any], where: str
) -> str | None:
    """The column that was named, or the first known one that the row has; None for no column."""
    if given is None:
        return next((name for name in known if row.get(name) is not None), None)
    if given and given not in row:
        raise UsageError(
            f"{where}: there is no {given!r}", hint=f"its columns are: {', '.join(row)}"
        )
    return given or None
