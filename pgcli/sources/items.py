"""One row of a manifest, or one line of standard input, as an Item."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Any

from pgcli.errors import ManifestError
from pgcli.records import Item, Region
from pgcli.sources.paths import MISSING, Placed, as_given
from pgcli.sources.reading import Reading
from pgcli.sources.rows import Row

Place = Callable[[str], Placed]
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def item(row: Row, index: int, reading: Reading, *, place: Place, holder: str) -> Item:
    """The row's Item. `holder` names the manifest: the row's image where bytes have no path."""
    path, data = _image(row, reading)
    if data is not None:
        placed = Placed(holder if path is None else as_given(path), None)
    else:
        placed = place(path) if path else Placed(holder, None, MISSING)
    given = row_id(row, reading)
    if given is None:
        given = as_given(path) if path else str(index)
    return Item(
        index,
        given,
        placed.image,
        placed.path,
        data,
        prompts=(prompt(row, reading),) if reading.wants_prompts else (),
        choices=choices(row, reading),
        region=region(row, reading),
        fields={name: _plain(row.values.get(name)) for name in reading.fields},
        kept={name: _plain(row.values.get(name)) for name in reading.keep},
        fault=placed.fault,
    )


def check(row: Row, reading: Reading) -> str | None:
    """The row's own id, once all that its Item needs proved sound. Raises ManifestError if not."""
    _image(row, reading)
    if reading.wants_prompts:
        prompt(row, reading)
    choices(row, reading)
    region(row, reading)
    return row_id(row, reading)


def row_id(row: Row, reading: Reading) -> str | None:
    """The row's own id as text, None where it gives none. Raises ManifestError if it is null."""
    if reading.id_column not in row.values:
        return None
    value = row.values[reading.id_column]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ManifestError(f"{row.place}: the id is neither text nor a number")


def prompt(row: Row, reading: Reading) -> str:
    """The row's own prompt, as written. Raises ManifestError if there is none."""
    value = row.values.get(reading.prompt_column)
    if isinstance(value, str):
        return value
    what = "no prompt" if value is None else "a prompt that is not text"
    raise ManifestError(f"{row.place}: the row has {what} in {reading.prompt_column!r}")


def choices(row: Row, reading: Reading) -> tuple[str, ...]:
    """The row's own candidates: a list, or text in which `|` stands between them."""
    if reading.choices_column is None:
        return ()
    value = row.values.get(reading.choices_column)
    listed = value.split("|") if isinstance(value, str) else value
    if isinstance(listed, list | tuple) and all(isinstance(one, str) for one in listed):
        return tuple(listed)
    raise ManifestError(
        f"{row.place}: the choices in {reading.choices_column!r} are neither a list of texts "
        "nor text such as yes|no"
    )


def region(row: Row, reading: Reading) -> Region | None:
    """The row's own region: four numbers in a list or a text, or a box; None where there is none.

    Raises ManifestError for anything else, as an answer about the wrong part would look right.
    """
    value = row.values.get(reading.region_column)
    if value is None or value == "":
        return None
    if reading.refuses_regions:
        raise ManifestError(
            f"{row.place}: the row brings a region, and one is given for all",
            hint="leave out --region, or the manifest's column",
        )
    if isinstance(value, Mapping):
        value = [value.get(corner) for corner in CORNERS]
    corners = value.split(",") if isinstance(value, str) else value
    try:
        left, top, right, bottom = map(float, corners)
    except (TypeError, ValueError):
        left, top, right, bottom = math.nan, 0, 0, 0
    if math.isfinite(left + top + right + bottom) and left < right and top < bottom:
        return left, top, right, bottom
    raise ManifestError(
        f"{row.place}: the {reading.region_column!r} is not xmin,ymin,xmax,ymax in pixels",
        hint=f"a column named {reading.region_column!r} says which part of a picture is meant; "
        "rename it if this one does not",
    )


def _image(row: Row, reading: Reading) -> tuple[str | None, bytes | None]:
    """The row's path and bytes. An empty path or no bytes at all count as none."""
    value = row.values.get(reading.image_column)
    path, data = value, None
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        path, data = value.get("path"), value.get("bytes")
    elif isinstance(value, bytes):
        path, data = None, value
    if isinstance(path, str | None) and isinstance(data, bytes | None):
        return path or None, data or None
    message = f"the image in {reading.image_column!r} is neither a path nor bytes"
    raise ManifestError(f"{row.place}: {message}")


def _plain(value: Any) -> Any:
    """The value as JSON and Arrow hold it: no NaN, no integer beyond 64 bits, dates as text."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return value.hex()
    return str(value)
