"""Reads what is true of images and prompts: a manifest, a result file, or a JSON document."""

from __future__ import annotations

from pathlib import Path

from pgcli.errors import UsageError
from pgcli.evaluation.truth.tables import add_tables
from pgcli.evaluation.truth.truths import TruthColumns, Truths
from pgcli.inputs import ReadOptions
from pgcli.inputs.listing import locate_source, usage_errors
from pgcli.inputs.paths import display_path
from pgcli.inputs.readers import InputFile
from pgcli.stores import Reader


def read_truth(name: str, columns: TruthColumns, url_reader: Reader | None = None) -> Truths:
    """The truth in a file or folder, or in a file at an address. Raises UsageError."""
    file = locate_source(name, ReadOptions(url_reader=url_reader))
    if file.url_reader is None and not Path(file.path).exists():
        raise UsageError(f"{name} does not exist", hint="--truth names a manifest with answers")
    truths = Truths(display_path(name))
    with usage_errors(truths.name):
        add_truth(file, columns, truths)
    truths.has_prompts &= columns.prompt != ""
    if not truths.by_key:
        raise UsageError(f"{truths.name} has no rows", hint="--truth names a manifest with answers")
    return truths


def add_truth(file: InputFile, columns: TruthColumns, truths: Truths) -> None:
    """Add what a file or folder says. Raises UsageError."""
    if file.path.lower().endswith(".json"):
        from pgcli.evaluation.truth.documents import add_document

        check_no_columns(columns, truths)
        add_document(file, truths)
    else:
        add_tables(file, columns, truths)


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
