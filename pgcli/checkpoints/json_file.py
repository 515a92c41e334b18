"""Reads one JSON file of a checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pgcli.checkpoints.model_file import open_model_file, unreadable
from pgcli.errors import InvalidCheckpoint

ADAPTER_CONFIG = "adapter_config.json"
MAX_JSON_BYTES = 8 * 2**20  # the largest published file has 1 MiB; parsing takes 30 times its size


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint; InvalidCheckpoint if there is none."""
    if not os.path.lexists(file):
        hint = "a checkpoint is a folder in the Hugging Face layout"
        if (file.parent / ADAPTER_CONFIG).is_file():
            hint = "it is an adapter: name it with --adapter, and with --model what it was made for"
        raise InvalidCheckpoint(f"{file.parent} has no {file.name}", hint=hint)
    try:
        with open_model_file(file) as stream:
            data = stream.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise InvalidCheckpoint(f"{file.name} is larger than {MAX_JSON_BYTES} bytes")
        values = json.loads(data.decode())
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{file} is not a JSON object")
    return values
