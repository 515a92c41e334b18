"""Converts a row of a manifest, or a line of standard input, to an Item."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pgcli.errors import ManifestError
from pgcli.records import NOT_READ, Item
from pgcli.remote.urls import without_credentials
from pgcli.sources.image_location import MISSING, ImageLocation
from pgcli.sources.json_values import to_json_value
from pgcli.sources.paths import display_name
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers.reader import ManifestRow
from pgcli.sources.row_prompts import read_prompts

#: Finds the image that a row names by path or URL.
Locate = Callable[[str], ImageLocation]


def row_to_item(
    row: ManifestRow, index: int, options: ReadOptions, *, locate: Locate, manifest: str
) -> Item:
    """The row's Item. `manifest`, its name, is the image of bytes without a path."""
    path, data = _image(row, options)
    prompts = read_prompts(row, options)
    if fault := row.fault or prompts.fault:
        location, data = ImageLocation(_image_name(path, manifest), None, fault), None
    elif data is not None:
        location = ImageLocation(_image_name(path, manifest), None)
    else:
        location = locate(path) if path else ImageLocation(manifest, None, MISSING)
    name = row_name(row, options)
    return Item(
        index,
        str(index) if name is None else name,
        location.image,
        location.path,
        data,
        prompts=prompts.prompts,
        choices=prompts.choices,
        region=prompts.region,
        fields={
            name: to_json_value(row.values.get(name))
            for name in (*options.fields, *options.optional_fields)
            if name in options.fields or name in row.values
        },
        kept={
            column.output: to_json_value(row.values.get(column.source), exact=True)
            for column in options.kept
        },
        fault=location.fault,
        root=location.root,
    )


def check_row(row: ManifestRow, options: ReadOptions) -> str | None:
    """Raise ManifestError if the row cannot become an Item. Returns its own id."""
    _image(row, options)
    read_prompts(row, options)
    return row_id(row, options)


def row_id(row: ManifestRow, options: ReadOptions) -> str | None:
    """The row's own id as text; None if it has none. Raises ManifestError for other values.

    Where bad rows are tolerated, only a column that the user named must hold ids.
    """
    if options.id_column not in row.values:
        return None
    value = row.values[options.id_column]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return without_credentials(str(value))
    if options.tolerates_bad_rows and options.id_column == ReadOptions.id_column:
        return None
    raise ManifestError(f"{row.position}: the id is neither text nor a number")


def row_name(row: ManifestRow, options: ReadOptions) -> str | None:
    """The row's own id, else the path of its image as written; None for bytes alone."""
    id_ = row_id(row, options)
    return image_name(row, options) if id_ is None else id_


def image_name(row: ManifestRow, options: ReadOptions) -> str | None:
    """The path of the row's image as written; None for bytes alone."""
    path, _ = _image(row, options)
    return display_name(path) if path else None


def _image_name(path: str | None, manifest: str) -> str:
    return display_name(path) if path else manifest


def _image(row: ManifestRow, options: ReadOptions) -> tuple[str | None, bytes | None]:
    """The path and the bytes of the row's image; None for empty ones."""
    value = row.values.get(options.image_column)
    path, data = value, None
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        path, data = value.get("path"), value.get("bytes")
    elif isinstance(value, bytes):
        path, data = None, value
    if isinstance(path, str | None) and isinstance(data, bytes | None):
        return path or None, data if data or data is NOT_READ else None
    message = f"the image in {options.image_column!r} is neither a path nor bytes"
    raise ManifestError(f"{row.position}: {message}")
