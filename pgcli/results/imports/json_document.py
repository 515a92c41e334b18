"""Reads JSON of unknown origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from pgcli.errors import UsageError
from pgcli.inputs.readers import InputFile, error_text
from pgcli.printable import is_deep
from pgcli.stores.files import open_regular


def read_document(file: InputFile | Path, max_bytes: int, *, hint: str) -> Any:
    """The content of a JSON file of at most `max_bytes`. Raises UsageError with the hint."""
    try:
        with open_regular(file) if isinstance(file, Path) else file.open() as opened:
            data = opened.read(max_bytes + 1)
        if len(data) > max_bytes:
            limit = f"{max_bytes / 2**20:,.0f} MiB"
            raise UsageError(f"{file} is larger than {limit}", hint="split it into several files")
        document = json.loads(data, parse_constant=refuse_constant)
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {error_text(problem)}", hint=hint) from problem
    except (ValueError, RecursionError) as problem:  # also UnicodeDecodeError
        raise UsageError(f"{file} is not valid JSON: {problem}", hint=hint) from problem
    if is_deep(document):
        raise UsageError(f"{file} is nested too deeply", hint=hint)
    return document


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python reads but JSON does not have."""
    raise ValueError(f"{name} is not a number of JSON")
