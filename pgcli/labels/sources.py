"""Reads what any source says about images, without opening them: the truth of `eval`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pgcli import registry
from pgcli.boxes import prompt_with_region
from pgcli.errors import UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import InputFile, ManifestRow, error_text, manifest_ending
from pgcli.inputs.rows import row_name
from pgcli.inputs.tables import open_table
from pgcli.labels.coco import read_coco
from pgcli.labels.columns import LabelColumns, LabelReader, column_values, label_of_folder
from pgcli.labels.json_values import read_text_inside
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    Labels,
    LabelSettings,
    LeftOut,
)
from pgcli.labels.upright import format_of
from pgcli.output.reader import read_results, state_folder
from pgcli.records import Item
from pgcli.stores.files import NotRegularFileError
from pgcli.stores.urls import url_scheme
from pgcli.tasks.question import normalize

#: Endings of text files with the answer, beside an image of the same name.
SIDECARS = (".txt", ".caption")
MAX_SIDECAR_BYTES = 2**20
HINT = (
    "--truth takes .jsonl, .csv, .tsv, .parquet, a folder of .parquet, annotations (COCO, YOLO, "
    "Label Studio or VQA), and a folder with a folder of images for each label"
)


def read_source(file: InputFile, columns: LabelColumns, id_column: str, counts: LeftOut) -> Labels:
    """The labels in a file or folder: annotations, a manifest, a result file, or folders of labels.

    Raises UsageError.
    """
    path = Path(file.path)
    root = path if path.is_dir() else path.parent
    settings = LabelSettings(root, as_given=True, counts=counts)
    format = None if file.url_reader is not None or is_run(file) else format_of(path)
    if format is not None:
        known: LabelFormat = registry.load("imports", format)
        labels = known.read(path, settings)
    elif file.path.lower().endswith(".json"):
        labels = read_coco(file, settings)
    elif is_label_folder(file):
        labels = Labels([*folder_labels(file)])
    else:
        return read_tables(file, columns, id_column, counts)
    for option, is_given in (
        ("--id-column", id_column != ReadOptions.id_column),
        ("--prompt-column", bool(columns.prompt)),
        ("--answer-column", columns.answer is not None),
    ):
        if is_given:
            raise UsageError(
                f"{option} has no effect on {file.name}, which is not a table", hint="omit it"
            )
    return labels


def is_run(file: InputFile) -> bool:
    """Whether the file or folder is the output of a run."""
    return file.url_reader is None and state_folder(Path(file.path)).exists()


def is_label_folder(file: InputFile) -> bool:
    """Whether the file is a folder of folders without Parquet files."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return False
    return not any(folder.glob("*.parquet")) and any(entry.is_dir() for entry in folder.iterdir())


def folder_labels(file: InputFile) -> Iterator[LabelledImage]:
    """The images of a folder with a folder per label. Raises UsageError."""
    inventory = Inventory.scan([file.path], ReadOptions())
    if inventory.has_columns:
        raise UsageError(f"{file.name} has manifests, not a folder per label", hint=HINT)
    for item in inventory:
        label = label_of_folder(file.name, item.id)
        yield LabelledImage(item.id, answers=(label,), columns={"label": label})


def read_tables(file: InputFile, columns: LabelColumns, id_column: str, counts: LeftOut) -> Labels:
    """The rows of a manifest, of a folder of Parquet, or of a result file. Raises UsageError."""
    options = ReadOptions(id_column=id_column)
    choices = Counter[tuple[str, ...]]()
    images: list[LabelledImage] = []
    for part in table_files(file):
        reader = LabelReader.of(part, columns, choices)
        for row in table_rows(part):
            if row.fault is not None:
                raise UsageError(f"{row.position} cannot be read: {row.fault.message}", hint=HINT)
            values = reader.fields(row.values)
            id_ = row_name(ManifestRow(row.position, values), options)
            if id_ is None:
                raise UsageError(
                    f"{row.position} has neither {id_column!r} nor a path in 'image'",
                    hint="rows are joined by id: name the column of ids with --id-column",
                )
            if values.get("error") is not None:
                counts.skip("rows with an error", id_)
                continue
            for name in columns.named:
                if name not in values:
                    hint = f"its columns are: {', '.join(values)}"
                    raise UsageError(f"{row.position} has no {name!r}", hint=hint)
            image = reader.read(values, row.position)
            prompt = image.prompt
            if prompt is not None:
                size = values.get("width"), values.get("height")
                prompt = prompt_with_region(normalize(prompt), values.get(REGION), *size)
            images.append(replace(image, id=id_, prompt=prompt, columns=column_values(values)))
    return Labels(images, choices=choices, is_table=True)


def table_files(file: InputFile) -> list[InputFile]:
    """The file, or the Parquet files of a folder without a state folder. Raises UsageError."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return [file]
    if paths := sorted(folder.glob("*.parquet")):
        return [InputFile(str(path), str(path)) for path in paths]
    raise UsageError(
        f"{file.name} is a folder without .parquet files, and without folders", hint=HINT
    )


def table_rows(file: InputFile) -> Iterator[ManifestRow]:
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
    yield from (row for _, row in table.read(names, images=False))


def text_beside(item: Item) -> tuple[str, ...]:
    """The text of the file beside a local image; empty without such a file or text.

    `a.png.txt` comes before `a.txt`, which may be about `a.jpg`. Raises ValueError for an
    unreadable or invalid file.
    """
    if item.path is None or url_scheme(item.path):
        return ()
    stem = os.path.splitext(item.path)[0]  # noqa: PTH122 - Path would drop a leading ./
    for path in (base + ending for base in (item.path, stem) for ending in SIDECARS):
        name = display_name(path)
        try:
            text = read_text_inside(path, MAX_SIDECAR_BYTES, item.root).strip()
        except (FileNotFoundError, NotRegularFileError):
            continue
        except OSError as problem:
            raise ValueError(f"{name} cannot be read: {error_text(problem)}.") from problem
        except ValueError as problem:
            raise ValueError(f"{name} cannot be read: {problem}.") from problem
        if text:
            return (text,)
    return ()
