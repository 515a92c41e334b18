"""Reads what is true of images and prompts: a manifest, a result file, or a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.evaluation.truth import TruthColumns, Truths, group_values, truth_of
from pgcli.evaluation.truth_documents import add_document
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.listing import locate_source, usage_errors
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_path
from pgcli.inputs.readers import InputFile, ManifestRow, manifest_ending
from pgcli.inputs.rows import row_name
from pgcli.inputs.tables import open_table
from pgcli.labelled_rows import (
    ExampleColumns,
    ExampleReader,
    label_of_folder,
    stated_size,
)
from pgcli.output.reader import read_results, state_folder
from pgcli.regions import prompt_with_region
from pgcli.stores import Reader
from pgcli.tasks.question import normalize

HINT = (
    "--truth takes .jsonl, .csv, .tsv, .parquet, a folder of .parquet, .json of COCO or VQA, and a "
    "folder with a folder of images for each label"
)


def read_truth(name: str, columns: TruthColumns, url_reader: Reader | None = None) -> Truths:
    """The truth in a file or folder, or in a file at an address. Raises UsageError."""
    file = locate_source(name, ReadOptions(url_reader=url_reader))
    if file.url_reader is None and not (Path(file.path).exists() or is_run(file)):
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
        check_no_columns(columns, truths)
        add_document(file, truths)
    elif is_label_folder(file):
        check_no_columns(columns, truths)
        add_labels(file, truths)
    else:
        add_tables(file, columns, truths)


def is_label_folder(file: InputFile) -> bool:
    """Whether it is a folder of folders, and has no tables."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return False
    return not any(folder.glob("*.parquet")) and any(entry.is_dir() for entry in folder.iterdir())


def add_labels(file: InputFile, truths: Truths) -> None:
    """Add the images of a folder, which has a folder of each label. Raises UsageError."""
    inventory = Inventory.scan([file.path], ReadOptions())
    if inventory.has_columns:
        raise UsageError(f"{file.name} has manifests, not a folder of each label", hint=HINT)
    for item in inventory:
        label = label_of_folder(truths.name, item.id)
        truths.add((item.id, None), RowTruth((label,), columns={"label": label}))
    truths.columns |= dict.fromkeys(("id", "label"))


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


def add_tables(file: InputFile, columns: TruthColumns, truths: Truths) -> None:
    """Add the rows of a manifest, a folder, or a result file. Raises UsageError."""
    options = ReadOptions(id_column=columns.id)
    named = ExampleColumns(columns.prompt or None, columns.answer)
    for part in table_files(file):
        reader = replace(ExampleReader.of(part, named), choices=truths.choices)
        for row in table_rows(part, truths):
            if row.fault is not None:
                raise UsageError(f"{row.position} cannot be read: {row.fault.message}", hint=HINT)
            values = reader.fields(row.values)
            truths.columns |= dict.fromkeys(values)
            id_ = row_name(row._replace(values=values), options)
            if id_ is None:
                raise UsageError(
                    f"{row.position}: it has neither {columns.id!r} nor a path in 'image'",
                    hint="rows are joined by id; --id-column names the column",
                )
            add_row(truths, id_, values, reader, row.position)


def add_row(
    truths: Truths, id_: str, row: Mapping[str, Any], reader: ExampleReader, where: str
) -> None:
    """Add the truth of a row; one with an error says nothing. Raises UsageError."""
    if row.get("error") is not None:
        return
    for name in reader.columns.named:
        if name not in row:
            raise UsageError(
                f"{where}: there is no {name!r}", hint=f"its columns are: {', '.join(row)}"
            )
    example = reader.read(row, where)
    truths.has_prompts |= example.prompt is not None
    prompt = None
    if example.prompt is not None:
        size = row.get("width"), row.get("height")
        prompt = prompt_with_region(normalize(example.prompt), row.get(REGION), *size)
    truths.add((id_, prompt), truth_of(example, group_values(row), stated_size(row)))


def is_run(file: InputFile) -> bool:
    """Whether the file or folder is the output of a run."""
    return file.url_reader is None and state_folder(Path(file.path)).exists()


def table_files(file: InputFile) -> list[InputFile]:
    """The file, or the Parquet files of a folder that no run is writing. Raises UsageError."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return [file]
    if paths := sorted(folder.glob("*.parquet")):
        return [InputFile(str(path), str(path)) for path in paths]
    raise UsageError(
        f"{file.name} is a folder without .parquet files, and without folders", hint=HINT
    )


def table_rows(file: InputFile, truths: Truths) -> Iterator[ManifestRow]:
    """The rows of a manifest, or of a run. Raises UsageError."""
    if is_run(file):  # its newest rows may still be in the state folder
        for number, values in enumerate(read_results(Path(file.path)), 1):
            yield ManifestRow(f"{file.name}, row {number}", values)
        return
    ending = manifest_ending(file.path)
    if ending is None or ending.startswith((".tar", ".tgz")):
        raise UsageError(f"{file.name} is not a table", hint=HINT)
    table = open_table(file)
    schema = table.schema()
    names = frozenset(() if schema is None else schema.names)
    truths.columns |= dict.fromkeys(sorted(names))
    yield from (row for _, row in table.read(names, images=False))
