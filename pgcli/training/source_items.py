"""Items of training sources: manifests, folders, result files and annotation files."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.lines import MAX_LINE_BYTES
from pgcli.inputs.options import REGION
from pgcli.inputs.readers import InputFile
from pgcli.output.lines import parse_row
from pgcli.output.reader import REQUIRED_COLUMNS, read_results
from pgcli.pipeline.progress.events import Message, OnEvent
from pgcli.records import COLUMNS, Item
from pgcli.regions import parse_region
from pgcli.results.images import ImageLocator, ImageRef
from pgcli.stores.files import open_regular, parse_path
from pgcli.stores.urls import url_scheme
from pgcli.wording import listed, note

#: The error columns of result files.
ERROR_COLUMNS = ("error", "error_message")
HEAD_BYTES = 2**16
#: Keys of tasks of Label Studio.
_TASKS = re.compile(rb'"(?:annotations|predictions|data)"\s*:')
#: A file with these columns is a result file.
COLUMNS_OF_RESULTS = REQUIRED_COLUMNS.intersection(COLUMNS)


def source_items(
    name: str, options: ReadOptions, prompt: str | None, on_event: OnEvent
) -> Iterable[Item]:
    """The items of a manifest, a folder, a result file or an annotation file.

    A `prompt` for all rows replaces the prompts of annotations.
    """
    is_manifest = options.image_column != ReadOptions.image_column
    if name == "-" or url_scheme(name) or is_manifest:
        return Inventory.scan([name], options)
    path = Path(parse_path(name))
    if (format := annotation_format(path)) is not None:
        return annotated_items(path, format, options, prompt, on_event)
    if not is_result_file(path):
        return Inventory.scan([name], options)
    locator = ImageLocator(on_event, url_reader=options.url_reader)
    return result_items(path, options, locator)


def is_error_row(item: Item) -> bool:
    """Whether the item is an error row of a result file."""
    fields = item.fields
    return all(name in fields for name in ERROR_COLUMNS) and fields["error"] is not None


def is_result_file(path: Path) -> bool:
    """Whether the path has the columns of an answering command's output."""
    if path.is_dir():
        return any(map(is_result_file, sorted(path.glob("*.parquet"))[:1]))
    names: Iterable[str] = ()
    if path.is_file() and path.suffix.lower() == ".parquet":
        from pgcli.inputs.parquet import ParquetTable  # slow to import

        try:
            names = ParquetTable(InputFile(str(path), str(path))).schema().names
        except ManifestError:  # opening it as a source reports this
            return False
    elif path.is_file() and path.suffix.lower() in (".jsonl", ".ndjson"):
        with open_regular(path) as file:
            names = parse_row(file.readline(MAX_LINE_BYTES)) or ()
    return set(names) >= COLUMNS_OF_RESULTS


def result_items(output: Path, options: ReadOptions, locator: ImageLocator) -> Iterator[Item]:
    """The rows of a result file as items with their columns.

    Raises UsageError for a missing column.
    """
    for number, row in enumerate(read_results(output)):
        if not options.names.accepts(str(row["id"])):
            continue
        fields = fields_of(row, options, str(output))
        item = Item(number, str(row["id"]), str(row["image"]), fields=fields)
        if is_error_row(item):
            yield item
            continue
        located = locator.item(number, ImageRef.of(row, output))
        yield replace(
            item,
            path=located.path,
            data=located.data,
            fault=located.fault,
            root=located.root,
        )


def fields_of(row: Mapping[str, Any], options: ReadOptions, name: str) -> dict[str, object]:
    """The requested columns of a row. Raises UsageError for a missing one."""
    for column in options.fields:
        if column not in row:
            hint = f"its columns are: {listed(list(row), len(row))}"
            raise UsageError(f"{name} has no column {column!r}", hint=hint)
    return {name: row[name] for name in (*options.fields, *options.optional_fields) if name in row}


def annotation_format(path: Path) -> str | None:
    """The format of an annotation file or folder; None for another source."""
    if path.is_dir():
        return "yolo" if (path / "data.yaml").is_file() else None
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    with open_regular(path) as file:
        head = file.read(HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if not head.startswith(b"["):
        return "coco"
    return "labelstudio" if _TASKS.search(head) else None


def annotated_items(
    path: Path, format: str, options: ReadOptions, prompt: str | None, on_event: OnEvent
) -> Iterator[Item]:
    """The rows that `pgcli import` makes from annotations, as items with their columns."""
    from pgcli.labels.labelled_image import ImportSettings
    from pgcli.labels.rows import TruthRows
    from pgcli.labels.upright import read_annotations

    root = path if path.is_dir() else path.parent
    settings = ImportSettings(root)
    annotations = read_annotations(format, path, settings)
    images = {image.id: image.image for image in annotations.images}
    rows = TruthRows(annotations, root, prompt)
    rows.check_ids()
    for number, row in enumerate(rows):
        if not options.names.accepts(str(row["id"])):
            continue
        fields = fields_of(row, options, str(path))
        if prompt is not None:
            fields = {name: value for name, value in fields.items() if name != "prompt"}
        region = row.get(REGION)
        yield Item(
            number,
            row["id"],
            row["image"],
            images[row["id"]],
            region=region and parse_region(region),
            fields=fields,
        )
    for text in settings.counts.notes:
        on_event(Message(f"{path}: {text}"))
    for count, text in rows.notes(settings.counts):
        if count:
            on_event(Message(f"{path}: {note(count, text)}"))
