"""Reads one JSON file of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pgcli.errors import InvalidCheckpoint

MAX_JSON_BYTES = 8 * 2**20  # the largest published file has 1 MiB; parsing takes 30 times its size


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint; InvalidCheckpoint if there is none."""
    if not file.is_file():
        raise InvalidCheckpoint(
            f"{file.parent} has no {file.name}",
            hint="a checkpoint is a folder in the Hugging Face layout",
        )
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise InvalidCheckpoint(f"{file.name} is larger than {MAX_JSON_BYTES} bytes")
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{file} is not a JSON object")
    return values
