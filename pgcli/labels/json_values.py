"""Reads JSON files of other programs and validates their values."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.inputs.lines import unique_keys
from pgcli.inputs.options import InputFile, error_text
from pgcli.stores.files import open_regular
from pgcli.text import (
    LFS_HINT,
    LFS_MESSAGE,
    decode_text,
    encodable,
    is_deep,
    is_lfs_pointer,
    without_marks,
)

MAX_BYTES = 2**30  # the answers of VQA's training part take 360 MB
HEAD_BYTES = 2**16
MAX_NUMBER = 1e15  # of pixels and ids; floats are exact below


class InvalidValue(ValueError):
    """A missing value, or one of another type than the format requires."""


def read_document(file: InputFile | Path, max_bytes: int | None = None, *, hint: str) -> Any:
    """The content of a JSON file, by default of at most MAX_BYTES. Raises UsageError."""
    max_bytes = MAX_BYTES if max_bytes is None else max_bytes
    try:
        with open_regular(file) if isinstance(file, Path) else file.open() as opened:
            data = opened.read(max_bytes + 1)
        if len(data) > max_bytes:
            limit = f"{max_bytes / 2**20:,.0f} MiB"
            raise UsageError(f"{file} is larger than {limit}", hint="split it into several files")
        if is_lfs_pointer(data):
            raise UsageError(f"{file} {LFS_MESSAGE}", hint=LFS_HINT)
        document = json.loads(data, object_pairs_hook=unique_keys)
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {error_text(problem)}", hint=hint) from problem
    except RecursionError as problem:  # from Python 3.12 on, at another depth
        raise UsageError(f"{file} is nested too deeply", hint=hint) from problem
    except ValueError as problem:  # also UnicodeDecodeError
        raise UsageError(f"{file} is not valid JSON: {problem}", hint=hint) from problem
    if is_deep(document):
        raise UsageError(f"{file} is nested too deeply", hint=hint)
    return document


def read_text_inside(file: Path | str, max_bytes: int, root: str | None = None) -> str:
    """The text of a file, which must be inside the root. Raises OSError, InvalidValue, and
    UsageError for a Git LFS pointer.
    """
    with open_regular(file, root) as opened:
        data = opened.read(max_bytes + 1)
    if is_lfs_pointer(data):
        raise UsageError(f"{file} {LFS_MESSAGE}", hint=LFS_HINT)
    if len(data) > max_bytes:
        raise InvalidValue(f"it is longer than {max_bytes >> 20} MiB")
    try:
        content = decode_text(data)
    except UnicodeDecodeError:
        raise InvalidValue("it is not UTF-8") from None
    if "\0" in content:
        raise InvalidValue("it contains a NUL byte: save it as UTF-8")
    return content


def json_head(file: Path) -> bytes | None:
    """The start of a JSON file from its first character; None for any other file."""
    if file.suffix.lower() != ".json" or not file.is_file():
        return None
    with open_regular(file) as opened:
        return opened.read(HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()


@contextmanager
def value_errors(name: object, *, hint: str) -> Iterator[None]:
    """Raise a ValueError of the block as a UsageError that starts with the name of the file."""
    try:
        yield
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}", hint=hint) from problem


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """The value as an object. Raises InvalidValue."""
    if not isinstance(value, dict):
        raise InvalidValue(f"{what} is not an object")
    return value


def array(value: object, what: str) -> list[Any]:
    """The value as an array. Raises InvalidValue."""
    if not isinstance(value, list):
        raise InvalidValue(f"{what} must be an array")
    return value


def text(value: object, what: str) -> str:
    """The value as UTF-8 text without byte order marks. Raises InvalidValue."""
    if not isinstance(value, str):
        raise InvalidValue(f"{what} is not text")
    return encodable(without_marks(value))


def whole_number(value: object, what: str) -> int:
    """The value as a whole number of 0 or more. Raises InvalidValue."""
    if isinstance(value, float) and value.is_integer() and 0 <= value < MAX_NUMBER:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_NUMBER:
        raise InvalidValue(f"{what} is not a whole number of 0 or more")
    return value


def id_text(value: object) -> str | None:
    """An integer or text id as text: 1, 1.0 and "1" are the same; None for other values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_id = isinstance(value, str | int) and not isinstance(value, bool)
    return encodable(without_marks(str(value))) if is_id else None


def unique_ids(entries: Sequence[Mapping[str, Any]], what: str) -> list[str | None]:
    """The `id` of each object or None. Raises InvalidValue for a duplicate id."""
    ids = [id_text(entry.get("id")) for entry in entries]
    places: dict[str, int] = {}
    for place, key in enumerate(ids, start=1):
        if key is not None and places.setdefault(key, place) != place:
            raise InvalidValue(f"{what} {places[key]} and {what} {place} have the same id: {key}")
    return ids


def number(value: object, what: str) -> float:
    """The value as a finite number. Raises InvalidValue."""
    is_bool = isinstance(value, bool)
    if is_bool or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise InvalidValue(f"{what} is not a number")
    return float(value)


def fraction(value: object, what: str) -> float:
    """The value as a number from 0 to 1. Raises InvalidValue."""
    if not 0 <= (share := number(value, what)) <= 1:
        raise InvalidValue(f"{what} is {share:g}, not a number from 0 to 1")
    return share


def label(value: object, what: str) -> str:
    """The value as a label that a detection answer can contain. Raises InvalidValue."""
    name = text(value, what).strip()
    if not name or ";" in name or "<loc" in name or "<seg" in name or len(name.splitlines()) > 1:
        raise InvalidValue(f"{what} is empty, or has a line break, a semicolon or a token of a box")
    return name


def label_or_none(value: object) -> str | None:
    """The value as `label`, or None."""
    try:
        return label(value, "")
    except InvalidValue:
        return None
