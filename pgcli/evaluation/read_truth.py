"""Reads the truth: a manifest, result file, COCO or VQA document, or a folder per label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.boxes import box_area
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.evaluation.truth import TruthColumns, Truths, group_values, truth_of
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.listing import locate_source, usage_errors
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_path
from pgcli.inputs.readers import InputFile, ManifestRow, manifest_ending
from pgcli.inputs.rows import row_name
from pgcli.inputs.tables import open_table
from pgcli.labels import coco
from pgcli.labels.columns import (
    ExampleColumns,
    ExampleReader,
    label_of_folder,
    read_answers,
    stated_size,
)
from pgcli.labels.json_values import InvalidValue, read_document, value_errors
from pgcli.labels.labelled_image import AnnotatedImage, ImportCounts, ImportSettings
from pgcli.labels.rows import TruthRows
from pgcli.output.reader import read_results, state_folder
from pgcli.regions import prompt_with_region
from pgcli.stores import Reader
from pgcli.tasks.question import normalize
from pgcli.wording import with_notes

DOCUMENT_HINT = (
    "--truth takes COCO's 'images' and 'annotations', and 'annotations' or 'data' of VQA"
)
MAX_BYTES = 2**30  # the answers of VQA's training part take 360 MB
QUESTION_IDS = ("question_id", "questionId")  # VQA's, and DocVQA's
HINT = (
    "--truth takes .jsonl, .csv, .tsv, .parquet, a folder of .parquet, .json of COCO or VQA, and a "
    "folder with a folder of images for each label"
)


def read_truth(name: str, columns: TruthColumns, url_reader: Reader | None = None) -> Truths:
    """The truth in a local file or folder, or in a file at a URL. Raises UsageError."""
    file = locate_source(name, ReadOptions(url_reader=url_reader))
    if file.url_reader is None and not (Path(file.path).exists() or is_run(file)):
        raise UsageError(f"{name} does not exist", hint="--truth names a manifest with answers")
    truths = Truths(display_path(name))
    with usage_errors(truths.name):
        add_truth(file, columns, truths)
    truths.ignores_prompts = columns.prompt == ""
    truths.has_prompts &= not truths.ignores_prompts
    if not truths.by_key:
        raise UsageError(f"{truths.name} has no rows", hint="--truth names a manifest with answers")
    return truths


def add_truth(file: InputFile, columns: TruthColumns, truths: Truths) -> None:
    """Add the truth in a file or folder. Raises UsageError."""
    if file.path.lower().endswith(".json"):
        check_no_columns(columns, truths)
        add_document(file, truths)
    elif is_label_folder(file):
        check_no_columns(columns, truths)
        add_labels(file, truths)
    else:
        add_tables(file, columns, truths)


def is_label_folder(file: InputFile) -> bool:
    """Whether the file is a folder of folders without Parquet files."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return False
    return not any(folder.glob("*.parquet")) and any(entry.is_dir() for entry in folder.iterdir())


def add_labels(file: InputFile, truths: Truths) -> None:
    """Add the images of a folder with a folder per label. Raises UsageError."""
    inventory = Inventory.scan([file.path], ReadOptions())
    if inventory.has_columns:
        raise UsageError(f"{file.name} has manifests, not a folder per label", hint=HINT)
    for item in inventory:
        label = label_of_folder(truths.name, item.id)
        truths.add((item.id, None), RowTruth((label,), columns={"label": label}))


def check_no_columns(columns: TruthColumns, truths: Truths) -> None:
    """Raise UsageError if an option names a column, which only tables have."""
    for option, is_given in (
        ("--id-column", columns.id != TruthColumns.id),
        ("--prompt-column", bool(columns.prompt)),
        ("--answer-column", columns.answer is not None),
    ):
        if is_given:
            raise UsageError(
                f"{option} has no effect on {truths.name}, which is not a table",
                hint="omit it",
            )


def add_tables(file: InputFile, columns: TruthColumns, truths: Truths) -> None:
    """Add the rows of a manifest, a folder, or a result file. Raises UsageError."""
    options = ReadOptions(id_column=columns.id)
    named = ExampleColumns(columns.prompt or None, columns.answer)
    truths.roles |= {columns.id, options.image_column, *named.named}
    for part in table_files(file):
        reader = replace(ExampleReader.of(part, named), choices=truths.choices)
        for row in table_rows(part):
            if row.fault is not None:
                raise UsageError(f"{row.position} cannot be read: {row.fault.message}", hint=HINT)
            values = reader.fields(row.values)
            id_ = row_name(ManifestRow(row.position, values), options)
            if id_ is None:
                raise UsageError(
                    f"{row.position} has neither {columns.id!r} nor a path in 'image'",
                    hint="rows are joined by id: name the column of ids with --id-column",
                )
            add_truth_row(truths, id_, values, reader, row.position)


def add_truth_row(
    truths: Truths, id_: str, row: Mapping[str, Any], reader: ExampleReader, where: str
) -> None:
    """Add the truth of a row; failed rows are skipped. Raises UsageError."""
    if row.get("error") is not None:
        return
    for name in reader.columns.named:
        if name not in row:
            raise UsageError(f"{where} has no {name!r}", hint=f"its columns are: {', '.join(row)}")
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


def add_document(file: InputFile, truths: Truths) -> None:
    """Add the truth in a COCO or VQA document. Raises UsageError."""
    document = read_document(file, MAX_BYTES, hint=DOCUMENT_HINT)
    if not isinstance(document, Mapping):
        raise UsageError(f"{truths.name} is not a JSON object", hint=DOCUMENT_HINT)
    records = question_records(document)
    with value_errors(truths.name, hint=DOCUMENT_HINT):
        if records is not None:
            add_questions(records, truths)
        else:
            add_coco(document, truths)


def add_coco(document: Mapping[str, Any], truths: Truths) -> None:
    """Add the boxes and captions of COCO's images. Raises InvalidValue."""
    settings = ImportSettings(Path(), as_given=True)
    annotations = coco.read_images(document, settings)
    truths.has_references = True
    for image in annotations.images:
        add_image(image, truths, settings.counts, has_boxes=bool(annotations.labels))
    truths.swaps_sides = annotations.swaps_sides
    skipped = with_notes("", TruthRows(annotations, Path()).notes(settings.counts))
    if skipped:
        truths.remarks[skipped.removeprefix("; ")] = None


def question_records(document: Mapping[str, Any]) -> Sequence[Any] | None:
    """The records of questions and answers; None for any other document."""
    for name in ("annotations", "data", "questions"):
        records = document.get(name)
        if isinstance(records, list) and records and question_id(records[0]) is not None:
            return records
    return None


def question_id(record: Any) -> str | None:
    """The question id of a record; None for any other record."""
    known = record if isinstance(record, Mapping) else {}
    values = (known.get(name) for name in QUESTION_IDS)
    return next((str(value) for value in values if isinstance(value, int | str)), None)


def add_questions(records: Sequence[Any], truths: Truths) -> None:
    """Add the answers of each question by its id. Raises InvalidValue."""
    for number, record in enumerate(records, start=1):
        id_ = question_id(record)
        if id_ is None:
            raise InvalidValue(f"record {number} has no question_id")
        answers = read_answers(record.get("answers", record.get("answer")))
        if not answers:
            raise InvalidValue(f"question {id_} has no answers; --truth needs a file with answers")
        truths.add((id_, None), RowTruth(answers, columns=group_values(record)))


def add_image(
    image: AnnotatedImage, truths: Truths, counts: ImportCounts, *, has_boxes: bool
) -> None:
    """Add the boxes and texts of an image; its name is its id.

    Texts of regions without a prompt are skipped: a region is part of a prompt.
    """
    if has_boxes and (image.boxes or not image.unread):
        boxes = tuple(box for box, _ in image.boxes)
        masks = tuple(mask for _, mask in image.boxes)
        areas = zip(boxes, image.areas, strict=True)
        truth = RowTruth(
            boxes=boxes,
            masks=None if masks and not any(masks) else masks,
            areas=tuple(box_area(box) if known is None else known for box, known in areas),
            crowds=tuple(image.crowds),
            size=(image.width, image.height) if image.is_stated else None,
        )
        truths.add((image.id, None), truth)
    for text in image.texts:
        prompt, size = text.prompt, (image.width, image.height)
        if prompt is not None:
            prompt = prompt_with_region(prompt, text.region, *size)
            truths.has_prompts = True
        elif text.region is not None:
            counts.skip("texts of regions", image.id)
            continue
        truths.add((image.id, prompt), RowTruth((text.text,)))
