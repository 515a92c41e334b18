"""Opens the sources of `train`: the images of a result file are found as its run found them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.lines import MAX_LINE_BYTES
from pgcli.inputs.paths import parse_path, url_scheme
from pgcli.inputs.readers import InputFile
from pgcli.output.lines import parse_row
from pgcli.output.reader import REQUIRED, Row, read_results
from pgcli.records import COLUMNS, Item
from pgcli.results.images import ImageLocator, ImageRef
from pgcli.run.progress.events import OnEvent
from pgcli.stores.files import open_regular
from pgcli.training.targets import is_error_row

#: The columns by which a result file is known.
COLUMNS_OF_RESULTS = REQUIRED.intersection(COLUMNS)


def source_opener(on_event: OnEvent) -> Callable[[str, ReadOptions], Iterable[Item]]:
    """The function that opens sources; `on_event` receives problems of finding images."""

    def open_source(name: str, options: ReadOptions) -> Iterable[Item]:
        is_manifest = options.image_column != ReadOptions.image_column
        if name == "-" or url_scheme(name) or is_manifest:
            return Inventory.scan([name], options)
        path = Path(parse_path(name))
        if not is_result_file(path):
            return Inventory.scan([name], options)
        return result_items(path, options, ImageLocator(on_event, url_reader=options.url_reader))

    return open_source


def is_result_file(path: Path) -> bool:
    """Whether the path is an output of an answering command, by its columns."""
    if path.is_dir():
        return any(map(is_result_file, sorted(path.glob("*.parquet"))[:1]))
    names: Iterable[str] = ()
    if path.is_file() and path.suffix.lower() == ".parquet":
        from pgcli.inputs.parquet import columns  # slow to import

        try:
            names = columns(InputFile(str(path), str(path)))
        except ManifestError:  # which opening it as a source says
            return False
    elif path.is_file() and path.suffix.lower() in (".jsonl", ".ndjson"):
        with open_regular(path) as file:
            names = parse_row(file.readline(MAX_LINE_BYTES)) or ()
    return set(names) >= COLUMNS_OF_RESULTS


def result_items(output: Path, options: ReadOptions, locator: ImageLocator) -> Iterator[Item]:
    """The rows of a result file as items with their columns.

    An image is searched for beside the file, as that of a manifest, and where its run found it.
    Raises UsageError for a column that a row does not have.
    """
    for number, row in enumerate(read_results(output)):
        if not options.names.accepts(str(row["id"])):
            continue
        fields = fields_of(row, options, output)
        item = Item(number, str(row["id"]), str(row["image"]), fields=fields)
        if is_error_row(item):
            yield item
            continue
        found = image_beside(output, item) or locator.item(number, ImageRef.of(row, output))
        yield Item(
            number,
            item.id,
            item.image,
            found.path,
            found.data,
            fields=fields,
            fault=found.fault,
            root=found.root,
        )


def fields_of(row: Row, options: ReadOptions, output: Path) -> dict[str, object]:
    """The columns of a row that are read."""
    for name in options.fields:
        if name not in row:
            raise UsageError(
                f"{output} has no column {name!r}", hint=f"its columns are: {', '.join(row)}"
            )
    return {name: row[name] for name in (*options.fields, *options.optional_fields) if name in row}


def image_beside(output: Path, item: Item) -> Item | None:
    """The image whose path is relative to the folder of the result file, if it exists."""
    path = os.path.join(output.parent, parse_path(item.image))  # noqa: PTH118 - a path as written
    try:
        return Item(item.index, item.id, item.image, path) if os.path.isfile(path) else None  # noqa: PTH113
    except ValueError:  # a NUL, which no file name has
        return None
