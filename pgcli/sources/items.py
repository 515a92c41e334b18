"""One row of a manifest, or one line of standard input, as an Item."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pgcli import regions
from pgcli.errors import ManifestError
from pgcli.records import Fault, Item, Region
from pgcli.sources.paths import MISSING, ImageLocation, display_name
from pgcli.sources.readers.reader import ManifestRow
from pgcli.sources.source_options import ReadOptions

Place = Callable[[str], ImageLocation]
Found = TypeVar("Found")


class RowPrompts(NamedTuple):
    """What a row says is to be asked about its picture, or what is wrong with that."""

    prompts: tuple[str, ...]
    choices: tuple[str, ...]
    region: Region | None
    fault: Fault | None


def item(row: ManifestRow, index: int, reading: ReadOptions, *, place: Place, holder: str) -> Item:
    """The row's Item. `holder` names the manifest: the row's image where bytes have no path."""
    path, data = _image(row, reading)
    wanted = asked(row, reading)
    if fault := row.fault or wanted.fault:
        placed, data = ImageLocation(display_name(path) if path else holder, None, fault), None
    elif data is not None:
        placed = ImageLocation(holder if path is None else display_name(path), None)
    else:
        placed = place(path) if path else ImageLocation(holder, None, MISSING)
    given = row_id(row, reading)
    if given is None:
        given = display_name(path) if path else str(index)
    return Item(
        index,
        given,
        placed.image,
        placed.path,
        data,
        prompts=wanted.prompts,
        choices=wanted.choices,
        region=wanted.region,
        fields={name: _plain(row.values.get(name)) for name in reading.fields},
        kept={name: _plain(row.values.get(name)) for name in reading.keep},
        fault=placed.fault,
    )


def check(row: ManifestRow, reading: ReadOptions) -> str | None:
    """The row's own id, once all that its Item needs proved sound. Raises ManifestError if not."""
    _image(row, reading)
    asked(row, reading)
    return row_id(row, reading)


def asked(row: ManifestRow, reading: ReadOptions) -> RowPrompts:
    """What the row asks.

    Raises ManifestError where that is unsound, unless rows bear that themselves: then only for a
    region beside the one that is given for all.
    """
    wrong: list[ManifestError] = []

    def found(
        read: Callable[[ManifestRow, ReadOptions], Found], instead: Found, *, borne: bool
    ) -> Found:
        try:
            return read(row, reading)
        except ManifestError as problem:
            if not borne:
                raise
            wrong.append(problem)
            return instead

    borne = reading.tolerates_bad_rows
    prompts = (found(prompt, "", borne=borne),) if reading.requires_prompts else ()
    chosen: tuple[str, ...] = found(choices, tuple[str, ...](), borne=borne)
    part = found(region, None, borne=borne and not reading.refuses_regions)
    if borne:
        found(check_fields, None, borne=True)
    return RowPrompts(prompts, chosen, part, fault_of(row, wrong[0]) if wrong else None)


def check_fields(row: ManifestRow, reading: ReadOptions) -> None:
    """Raise ManifestError where a column that fills prompts has more than a text or a number."""
    for name in reading.fields:
        if isinstance(value := row.values.get(name), Mapping | list | tuple):
            kind = type(value).__name__
            raise ManifestError(f"{row.place}: {name!r} holds {kind}, not text or a number")


def fault_of(row: ManifestRow, problem: ManifestError) -> Fault:
    """What is wrong with a row's text, as the fault of its picture."""
    said = str(problem).removeprefix(f"{row.place}: ")
    return Fault("decode_failed", f"{said[:1].upper()}{said[1:]}.")


def row_id(row: ManifestRow, reading: ReadOptions) -> str | None:
    """The row's own id as text, None where it gives none. Raises ManifestError if it is null.

    Where rows bear what is wrong with them, only a column that the user named has to have ids.
    """
    if reading.id_column not in row.values:
        return None
    value = row.values[reading.id_column]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if reading.tolerates_bad_rows and reading.id_column == ReadOptions.id_column:
        return None
    raise ManifestError(f"{row.place}: the id is neither text nor a number")


def prompt(row: ManifestRow, reading: ReadOptions) -> str:
    """The row's own prompt, as written. Raises ManifestError if there is none."""
    value = row.values.get(reading.prompt_column)
    if isinstance(value, str):
        return value
    what = "no prompt" if value is None else "a prompt that is not text"
    raise ManifestError(f"{row.place}: the row has {what} in {reading.prompt_column!r}")


def choices(row: ManifestRow, reading: ReadOptions) -> tuple[str, ...]:
    """The row's own candidates: a list, as text in JSON too, or text in which `|` stands between.

    Raises ManifestError where there are not two or more, all of them text and none twice.
    """
    name = reading.choices_column
    if name is None:
        return ()
    if name not in row.values:
        hint = f"its columns are: {', '.join(map(str, row.values))}"
        raise ManifestError(f"{row.place}: there is no {name!r}", hint=hint)
    listed = _listed(row.values[name])
    if listed is None or not all(isinstance(one, str) for one in listed):
        problem = "are neither a list of texts nor text such as yes|no"
    elif len(listed) < 2:
        problem = f"are {len(listed)}, and picking takes two"
    else:
        stripped = tuple(one.strip() for one in listed)
        if all(stripped) and len(set(stripped)) == len(stripped):
            return stripped
        problem = "have an empty one" if not all(stripped) else "have one twice"
    raise ManifestError(f"{row.place}: the choices in {name!r} {problem}", hint="write yes|no")


def _listed(value: Any) -> Sequence[Any] | None:
    """A cell's list, None where it holds none."""
    if not isinstance(value, str):
        return value if isinstance(value, list | tuple) else None
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            found = json.loads(value)
            if isinstance(found, list):
                return found
    return value.split("|")


def region(row: ManifestRow, reading: ReadOptions) -> Region | None:
    """The row's own region, None where it gives none.

    Raises ManifestError for anything else, as an answer about the wrong part would look right.
    """
    name = reading.region_column
    value = row.values.get(name)
    if (
        value is None
        or value == ""
        or (reading.tolerates_bad_rows and _means_something_else(value))
    ):
        return None
    if reading.refuses_regions:
        raise ManifestError(
            f"{row.place}: the row brings a region, and one is given for all",
            hint="leave out --region, or the manifest's column",
        )
    try:
        return regions.parse_region(value)
    except ValueError as problem:
        raise ManifestError(
            f"{row.place}: the {name!r} is {problem}",
            hint=f"a column named {name!r} says which part of a picture is meant; rename it if "
            "this one does not",
        ) from problem


def _means_something_else(value: Any) -> bool:
    """Whether a value named region is a text such as `Europe`, without a number anywhere in it."""
    if not isinstance(value, str):
        return False
    for part in value.split(","):
        with suppress(ValueError):
            float(part)
            return False
    return True


def _image(row: ManifestRow, reading: ReadOptions) -> tuple[str | None, bytes | None]:
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
