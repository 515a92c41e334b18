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


class MetricsFile:
    """Lines of metrics, appended and flushed one by one."""

    def __init__(self, file: Path, step: int):
        """Open the file at `step`, and remove the lines of later steps."""
        kept = [line for line in read_metrics(file) if line["step"] <= step]
        temporary = f".{file.name}.part"  # one name, so killed runs leave one file
        with published(file, temporary=temporary) as path:
            path.write_text("".join(map(_text, kept)), encoding="utf-8")
        with wrap_write_errors(file):
            self._stream = file.open("a", encoding="utf-8")
        self._file = file

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All lines, read from the file to save memory."""
        return read_metrics(self._file)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line. Raises OutputFailed."""
        values = {key: round6(x) if isinstance(x, float) else x for key, x in line.items()}
        with wrap_write_errors(self._file):
            self._stream.write(_text(values))
            self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"
