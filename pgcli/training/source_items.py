"""Items of training sources: manifests, folders, result files and annotation files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.lines import MAX_LINE_BYTES
from pgcli.inputs.readers import InputFile
from pgcli.labels.labelled_image import LabelledImage, LabelSettings
from pgcli.labels.rows import check_ids, skipped
from pgcli.labels.upright import format_of, read_upright
from pgcli.output.lines import parse_row
from pgcli.output.reader import REQUIRED_COLUMNS, read_results
from pgcli.pipeline.progress.events import Message, OnEvent
from pgcli.records import COLUMNS, Item
from pgcli.results.images import ImageLocator, ImageRef
from pgcli.stores.files import open_regular, parse_path
from pgcli.stores.urls import url_scheme
from pgcli.wording import listed, note

#: The error columns of result files.
ERROR_COLUMNS = ("error", "error_message")
#: A file with these columns is a result file.
COLUMNS_OF_RESULTS = REQUIRED_COLUMNS.intersection(COLUMNS)


def source_items(name: str, options: ReadOptions, on_event: OnEvent) -> Iterable[Item]:
    """The items of a manifest, a folder or a result file, with their columns."""
    is_manifest = options.image_column != ReadOptions.image_column
    if name == "-" or url_scheme(name) or is_manifest:
        return Inventory.scan([name], options)
    path = Path(parse_path(name))
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


def annotated_images(
    name: str, options: ReadOptions, prompt: str | None, on_event: OnEvent
) -> list[LabelledImage] | None:
    """The labels in an annotation file or folder, as `pgcli import` asks for them.

    None for another source. A `prompt` for all rows replaces the prompts of annotations.
    """
    if name == "-" or url_scheme(name) or options.image_column != ReadOptions.image_column:
        return None
    path = Path(parse_path(name))
    if (format := format_of(path)) is None:
        return None
    for column in options.fields:
        raise UsageError(
            f"{path} has no column {column!r}", hint="annotations have no columns, manifests have"
        )
    settings = LabelSettings(path if path.is_dir() else path.parent)
    labels = read_upright(format, path, settings)
    check_ids(labels, prompt)
    images = [image for image in labels.asked() if options.names.accepts(image.id)]
    for text in settings.counts.notes:
        on_event(Message(f"{path}: {text}"))
    for number, text in skipped(labels, settings.counts):
        if number:
            on_event(Message(f"{path}: {note(number, text)}"))
    return images if prompt is None else [replace(image, prompt=None) for image in images]
