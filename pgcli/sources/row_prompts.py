"""What a manifest row asks about its image: prompts, choices and a region."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pgcli import regions
from pgcli.errors import ManifestError
from pgcli.records import Fault, Region
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers.reader import ManifestRow

T = TypeVar("T")
MAX_LISTED_COLUMNS = 50


class RowPrompts(NamedTuple):
    """What a row asks about its image, or the fault of that."""

    prompts: tuple[str, ...]
    choices: tuple[str, ...]
    region: Region | None
    fault: Fault | None


def read_prompts(row: ManifestRow, options: ReadOptions) -> RowPrompts:
    """What the row asks.

    Raises ManifestError for invalid values. Where bad rows are tolerated they are a fault, except
    for a region in a row when one is given for all rows.
    """
    problems: list[ManifestError] = []

    def attempt(read: Callable[[ManifestRow, ReadOptions], T], default: T, *, tolerated: bool) -> T:
        try:
            return read(row, options)
        except ManifestError as problem:
            if not tolerated:
                raise
            problems.append(problem)
            return default

    tolerated = options.tolerates_bad_rows
    prompts: tuple[str, ...] = ()
    if options.requires_prompts:
        prompts = (attempt(read_prompt, "", tolerated=tolerated),)
    choices: tuple[str, ...] = attempt(read_choices, (), tolerated=tolerated)
    region = attempt(read_region, None, tolerated=tolerated and not options.refuses_regions)
    if tolerated:
        attempt(check_fields, None, tolerated=True)
    fault = fault_of(row, problems[0]) if problems else None
    return RowPrompts(prompts, choices, region, fault)


def read_prompt(row: ManifestRow, options: ReadOptions) -> str:
    """The row's prompt, as written. Raises ManifestError if there is none."""
    value = row.values.get(options.prompt_column)
    if isinstance(value, str):
        return value
    noun = options.prompt_noun
    what = f"no {noun}" if value is None else f"a {noun} that is not text"
    message = f"{row.position}: the row has {what} in {options.prompt_column!r}"
    if value is None and row.values:
        raise ManifestError(message, hint=columns_hint(row.values, options.prompt_column, options))
    raise ManifestError(message)


def columns_hint(columns: Iterable[str], wanted: str, options: ReadOptions) -> str:
    """Which columns there are, where the wanted one is missing."""
    hint = f"its columns are: {', '.join(sorted(columns)[:MAX_LISTED_COLUMNS])}"
    if wanted == options.prompt_column:
        noun = options.prompt_noun
        hint += f"; --{noun}-column NAME chooses one, --{noun} TEXT gives all rows the same"
    return hint


def read_choices(row: ManifestRow, options: ReadOptions) -> tuple[str, ...]:
    """The row's choices: a list, a list as JSON text, or text separated by `|`.

    Raises ManifestError unless there are at least two, all of them distinct texts.
    """
    name = options.choices_column
    if name is None:
        return ()
    if name not in row.values:
        hint = f"its columns are: {', '.join(map(str, row.values))}"
        raise ManifestError(f"{row.position}: there is no {name!r}", hint=hint)
    listed = _list_of(row.values[name])
    if listed is None or not all(isinstance(one, str) for one in listed):
        problem = "are neither a list of texts nor text such as yes|no"
    elif len(listed) < 2:
        problem = f"are {len(listed)}, and at least two are needed"
    else:
        stripped = tuple(one.strip() for one in listed)
        if all(stripped) and len(set(stripped)) == len(stripped):
            return stripped
        problem = "have an empty one" if not all(stripped) else "have one twice"
    raise ManifestError(f"{row.position}: the choices in {name!r} {problem}", hint="write yes|no")


def _list_of(value: Any) -> Sequence[Any] | None:
    """A cell's list; None if it holds none."""
    if not isinstance(value, str):
        return value if isinstance(value, list | tuple) else None
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            found = json.loads(value)
            if isinstance(found, list):
                return found
    return value.split("|")


def read_region(row: ManifestRow, options: ReadOptions) -> Region | None:
    """The row's region; None if it has none.

    Raises ManifestError for an invalid one, as an answer about the wrong region would look right.
    """
    name = options.region_column
    value = row.values.get(name)
    if value is None or value == "":
        return None
    if options.tolerates_bad_rows and _is_without_numbers(value):
        return None
    if options.refuses_regions:
        raise ManifestError(
            f"{row.position}: the row has a region, and one is given for all rows",
            hint="leave out --region, or the manifest's column",
        )
    try:
        return regions.parse_region(value)
    except ValueError as problem:
        raise ManifestError(
            f"{row.position}: the {name!r} is {problem}",
            hint=f"a column named {name!r} holds the region of the image that the prompt is "
            "about; rename it if this one does not",
        ) from problem


def _is_without_numbers(value: Any) -> bool:
    """Whether a value is a text such as `Europe`, from a column `region` of another meaning."""
    if not isinstance(value, str):
        return False
    for part in value.split(","):
        with suppress(ValueError):
            float(part)
            return False
    return True


def check_fields(row: ManifestRow, options: ReadOptions) -> None:
    """Raise ManifestError if a column that fills prompts holds more than a text or a number."""
    for name in options.fields:
        if isinstance(value := row.values.get(name), Mapping | list | tuple):
            kind = type(value).__name__
            raise ManifestError(f"{row.position}: {name!r} holds {kind}, not text or a number")


def fault_of(row: ManifestRow, problem: ManifestError) -> Fault:
    """The problem of a row as the fault of its image."""
    message = str(problem).removeprefix(f"{row.position}: ")
    return Fault("decode_failed", f"{message[:1].upper()}{message[1:]}.")
