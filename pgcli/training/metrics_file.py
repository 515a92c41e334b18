"""`metrics.jsonl`, one line per update; a resumed run removes the lines after its saved state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgcli.rows import round6
from pgcli.stores.files import read_text
from pgcli.stores.writing import published, wrap_write_errors

METRICS = "metrics.jsonl"


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The complete lines of the file; empty if it does not exist."""
    if not file.exists():
        return []
    lines = []
    for line in read_text(file).splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # a killed process truncated the last line
            break
    return lines


def remove_later_metrics(file: Path, step: int) -> None:
    """Keep the lines up to this step. Raises OutputFailed."""
    kept = [line for line in read_metrics(file) if line["step"] <= step]
    with published(file, is_owner=True) as path:
        path.write_text("".join(map(_text, kept)), encoding="utf-8")


def append_metrics(file: Path, line: Mapping[str, Any]) -> None:
    """Write the line of an update. Raises OutputFailed."""
    values = {key: round6(x) if isinstance(x, float) else x for key, x in line.items()}
    with wrap_write_errors(file), file.open("a", encoding="utf-8") as stream:
        stream.write(_text(values))


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"
