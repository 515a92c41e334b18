"""Converts rows to items: images and questions. A row with an invalid value is a failed row.

Images of a wrong type, and ids that are neither text nor numbers, raise ManifestError when a
manifest is counted. A text may be the image itself, in base64 or as a `data:` URL.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from pgcli.boxes import parse_region
from pgcli.errors import ManifestError, UsageError
from pgcli.inputs.options import (
    REGION,
    KeptColumn,
    ManifestRow,
    ReadOptions,
    needed_columns,
    prompt_columns,
)
from pgcli.inputs.paths import MAX_PATH, NO_IMAGE, ImageLocation, display_name
from pgcli.records import Fault, Item, Region
from pgcli.rows import json_safe
from pgcli.stores.urls import without_credentials
from pgcli.text import listed

#: Finds the image that a row names by path or URL.
Locate = Callable[[str], ImageLocation]
MAX_LISTED_COLUMNS = 50


class BadValue(Exception):
    """An invalid value of a row, with its fault."""

    def __init__(self, message: str, code: str = "decode_failed"):
        super().__init__(message)
        self.fault = Fault(code, message)


class WrongType(BadValue):
    """A value with a type that the column cannot have."""


def row_to_item(
    row: ManifestRow,
    index: int,
    options: ReadOptions,
    *,
    locate: Locate,
    manifest: str,
    kept: Sequence[KeptColumn] = (),
) -> Item:
    """The row's Item. `manifest`, its name, is the image of bytes without a path.

    `locate` finds the file of a row with a `span` too. Raises ManifestError for an invalid id.
    """
    faults = [row.fault] if row.fault else []
    path, data = None, None
    prompts: tuple[str, ...] = ("",) if options.requires_prompts else ()
    choices: tuple[str, ...] = ()
    region: Region | None = None
    fields = {
        name: json_safe(row.values.get(name))
        for name in (*options.fields, *options.optional_fields)
        if name in options.fields or name in row.values
    }
    try:
        path, data = row_image(row, options)
        if options.requires_prompts and not row.fault:
            prompts = (read_prompt(row, options),)
        if options.choices_column is not None:
            choices = read_choices(row, options.choices_column)
        region = read_region(row)
        if not options.allows_nulls:
            check_fields(fields, options)
    except BadValue as problem:
        faults.append(problem.fault)
    if faults or data is not None:
        location = ImageLocation(display_name(path) if path else manifest, None)
    elif path:
        location = locate(path)
        faults += [location.fault] if location.fault else []
    else:
        location, faults = ImageLocation(manifest, None), [NO_IMAGE]
    name = row_name(row, options)
    return Item(
        index,
        str(index) if name is None else name,
        location.image,
        location.path,
        None if faults else data,
        span=None if faults else row.span,
        prompts=prompts,
        choices=choices,
        region=region,
        fields=fields,
        kept={column.output: row.values.get(column.source) for column in kept},
        fault=faults[0] if faults else None,
        root=location.root,
    )


def check_row(row: ManifestRow, options: ReadOptions) -> str | None:
    """The row's own id, if any. Raises ManifestError for an invalid id or type of image."""
    try:
        row_image(row, options)
    except WrongType as problem:
        text = problem.fault.message.rstrip(".")
        raise ManifestError(f"{row.position}: {text[:1].lower()}{text[1:]}") from problem
    except BadValue:
        pass  # an error of the row
    if options.refuses_regions and has_region(row.values.get(REGION)):
        raise ManifestError(
            f"{row.position}: the row has its own region, and <--region=> is given too",
            hint="omit <--region=>, or remove the region of the row",
        )
    return row_id(row, options)


class RowChecker:
    """Checks rows that come one by one: lines of standard input, dicts in Python."""

    def __init__(self, options: ReadOptions, kept: Iterable[KeptColumn] = ()):
        self._options = options
        self._needed = sorted(needed_columns(options, kept))
        self._prompts = prompt_columns(options) if options.requires_prompts else ()
        self._positions: dict[int, str] = {}  # of the rows so far, by the hashes of their ids

    def check(self, row: ManifestRow) -> None:
        """Raise UsageError for a missing column, an extra prompt, or an invalid or repeated id."""
        options, values, position = self._options, row.values, row.position
        if options.refuses_prompts and values.get(options.prompt_column) is not None:
            raise UsageError(
                f"{position}: the row has its own prompt, and <--prompt=> is given too",
                hint="omit one of them, or name another column with <--prompt-column=>",
            )
        is_asked = not self._prompts or any(name in values for name in self._prompts)
        for column in (*self._needed, *(() if is_asked else self._prompts[:1])):
            if column not in values:
                raise missing_column(position, values, column, options)
        name = check_row(row, options)
        if name is not None and not (options.repeats_ids or options.spool):
            earlier = self._positions.setdefault(hash(name), position)
            if earlier != position:
                raise repeated_id(name, earlier, position)


def row_id(row: ManifestRow, options: ReadOptions) -> str | None:
    """The row's own id as text; None without one. Raises ManifestError for other values."""
    value: Any = row.values.get(options.id_column)
    if is_missing(value):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, str) or (is_number and abs(value) != math.inf):
        return without_credentials(shown_id(value))
    if row.fault:
        return None
    raise ManifestError(
        f"{row.position}: the id in {options.id_column!r} is neither text nor a number"
    )


def shown_id(value: Any) -> str:
    """An id as text. A whole number has no fraction: a missing value makes pandas store integers as
    floats.
    """
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return str(int(value) if is_whole else value)


def is_missing(value: Any) -> bool:
    """Whether an id is missing: null, pandas' NaN, or a blank text."""
    is_blank = isinstance(value, str) and not value.strip()
    return value is None or is_blank or (isinstance(value, float) and math.isnan(value))


def row_name(row: ManifestRow, options: ReadOptions) -> str | None:
    """The row's own id, else the path of its image as written; None for bytes alone."""
    name = row_id(row, options)
    if name is None:
        with suppress(BadValue):
            path, _ = row_image(row, options)
            return display_name(path) if path else None
    return name


def row_image(row: ManifestRow, options: ReadOptions) -> tuple[str | None, bytes | None]:
    """The path and the bytes of the row's image; None for empty values. Raises BadValue.

    A list must have exactly one image. A text may be the image itself, in base64.
    """
    name = options.image_column
    value = row.values.get(name)
    if isinstance(value, list):
        if not value:
            raise BadValue(f"The list of images in {name!r} is empty.", "missing")
        if len(value) > 1:
            message = f"The list in {name!r} has {len(value)} images, and a row has one."
            raise BadValue(message, "unsupported_format")
        value = value[0]
    path, data = value, None
    if isinstance(value, Mapping) and value.keys() & {"bytes", "path"}:
        path, data = value.get("path"), value.get("bytes")
    elif isinstance(value, bytes):
        path, data = None, value
    try:
        if isinstance(data, str):  # JSON has no bytes
            data = image_in_text(data) or decode_base64(data)
        if isinstance(path, str) and (embedded := image_in_text(path)) is not None:
            path, data = None, data or embedded
    except ValueError as problem:
        message = f"The image in {name!r} is neither base64 nor a valid `data:` URL."
        raise BadValue(message) from problem
    if isinstance(path, str | None) and isinstance(data, bytes | None):
        return None if is_missing(path) else path, data or None
    raise WrongType(f"The image in {name!r} is neither a path nor bytes.")


def read_prompt(row: ManifestRow, options: ReadOptions) -> str:
    """The row's prompt, as written. Raises BadValue for a missing prompt."""
    values = [row.values.get(name) for name in prompt_columns(options)]
    texts = [value for value in values if isinstance(value, str)]
    if (text := next(filter(str.strip, texts), None)) is not None:
        return text
    message = f"The row has no {options.prompt_noun} in {options.prompt_column!r}."
    raise BadValue(message, "no_prompt")


def check_fields(fields: dict[str, Any], options: ReadOptions) -> None:
    """Raise BadValue if a column that fills prompts is null, or neither text nor a number."""
    for name in options.fields:
        value = fields[name]
        if value is None:
            message = f"The row has no value in {name!r}, which fills its {options.prompt_noun}."
            raise BadValue(message, "no_prompt")
        if isinstance(value, Mapping | list):
            fields[name] = None
            kind = "an object" if isinstance(value, Mapping) else "a list"
            raise BadValue(f"{name!r} holds {kind}, not text or a number.", "no_prompt")


def missing_column(
    name: str, columns: Iterable[str], wanted: str, options: ReadOptions
) -> ManifestError:
    """The error for a missing column of a file or a row, with the existing columns."""
    hint = f"its columns are: {listed(sorted(columns), MAX_LISTED_COLUMNS) or 'none'}"
    if not options.has_column_options:
        hint += f"; rename one to {wanted!r}"
    elif wanted in (options.image_column, options.id_column):
        noun = "image" if wanted == options.image_column else "id"
        hint += f"; <--{noun}-column NAME> chooses one"
    elif wanted == options.prompt_column:
        noun = options.prompt_noun
        hint += f"; <--{noun}-column NAME> chooses one, <--{noun} TEXT> is the same for all rows"
    return ManifestError(f"{name} has no column {wanted!r}", hint=hint)


def repeated_id(name: str, first: str, second: str) -> ManifestError:
    """The error for a repeated id, with both positions."""
    return ManifestError(
        f"the id {name!r} occurs twice: {first} and {second}",
        hint="name each source and each row once; <--id-column NAME> chooses another column of ids",
    )


def read_choices(row: ManifestRow, column: str) -> tuple[str, ...]:
    """The row's choices: a list, or text separated by `|`.

    Raises BadValue unless there are at least two, all of them distinct texts.
    """
    value = row.values.get(column)
    choices = value.split("|") if isinstance(value, str) else value
    if not (isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)):
        problem = "are neither a list of texts nor text such as yes|no"
    elif len(choices) < 2:
        problem = f"are {len(choices)}, and at least two are needed"
    else:
        stripped = tuple(choice.strip() for choice in choices)
        if all(stripped) and len(set(stripped)) == len(stripped):
            return stripped
        problem = "have an empty one" if not all(stripped) else "have one twice"
    raise BadValue(f"The choices in {column!r} {problem}.")


def has_region(value: Any) -> bool:
    """Whether a value of a column named `region` is one: not null, and not `Europe`."""
    if not isinstance(value, str):
        return value is not None
    for part in value.split(","):
        with suppress(ValueError):
            float(part)
            return True
    return False


def read_region(row: ManifestRow) -> Region | None:
    """The row's region; None without one.

    Raises BadValue for an invalid one, as an answer about the wrong region would look right.
    """
    value = row.values.get(REGION)
    if not has_region(value):
        return None
    try:
        return parse_region(value)
    except ValueError as problem:
        raise BadValue(f"The {REGION!r} {problem}.") from problem


#: The first bytes of images; no path and no line of JSON begins with them.
IMAGE_BYTES = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|BM....\0\0\0\0|II\*\0|MM\0\*"
    rb"|....ftyp(?:avif|avis|mif1)|P[1-6]\s(?:#.*\n)*\s*\d+\s+\d+\s",
    re.DOTALL,
)
#: The start of a text that may be the base64 of an image; the decoded bytes decide.
_BASE64_HEAD = re.compile(r"\s*[A-Za-z0-9+/_\-][A-Za-z0-9+/_\-\s]{39,}")
HEAD_CHARACTERS = 160
MAX_NAME = 255  # of the file systems of Linux and macOS
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_DATA = re.compile(r"data:([^,]*),(.*)", re.DOTALL | re.IGNORECASE)


def image_in_text(text: str) -> bytes | None:
    """The bytes of an image in base64 or a `data:` URL; None for any other text.

    Text of base64 characters is an image if it decodes to the first bytes of one, or is too long
    for a path. Raises ValueError for an invalid `data:` URL.
    """
    if text[:5].lower() == "data:":
        match = _DATA.fullmatch(text)
        if match is None:
            raise ValueError("there is no comma before the data")
        data = unquote_to_bytes(match[2])
        is_base64 = match[1].replace(" ", "").lower().endswith(";base64")
        return decode_base64(data.decode("ascii", "replace")) if is_base64 else data
    head = _BASE64_HEAD.match(text, 0, HEAD_CHARACTERS)
    if head is None:
        return None
    is_path = len(text) <= MAX_PATH or max(map(len, text.split("/"))) <= MAX_NAME
    try:
        if IMAGE_BYTES.match(decode_base64(head[0])) or not is_path:
            return decode_base64(text)
    except ValueError:
        pass  # other characters
    return None


def is_path(value: object) -> bool:
    """Whether the value is text, but not an image in base64."""
    try:
        return isinstance(value, str) and image_in_text(value) is None
    except ValueError:
        return False


def decode_base64(text: str) -> bytes:
    """The bytes of base64 in either alphabet, with or without line breaks and padding.

    Raises ValueError.
    """
    characters = "".join(text.split()).rstrip("=").translate(_STANDARD_ALPHABET)
    return base64.b64decode(characters + "=" * (-len(characters) % 4), validate=True)
