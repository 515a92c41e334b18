"""A file of answers that are complete before earlier rows are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgcli.state.record_file import Position, RecordFile, parse_row, read_lines
from pgcli.state.write_errors import wrap_write_errors

MIN_COMPACT_BYTES = 2**20  # a smaller file is not worth compacting


class Journal:
    """Rows by row index, each kept until it is written to the output."""

    def __init__(self, file: Path):
        self.file = file
        self._sizes: dict[int, int] = {}  # bytes of each row's line
        self._lines: RecordFile | None = None

    def load(self) -> dict[int, Mapping[str, Any]]:
        """The rows that an earlier run left, by row index. They stay in the journal.

        Truncates the file after its last whole entry. Raises OutputFailed.
        """
        rows: dict[int, Mapping[str, Any]] = {}
        if not self.file.exists():
            return rows
        size = count = 0
        for line in read_lines(self.file):
            entry = parse_row(line)
            if entry is None or not isinstance(entry.get("place"), int) or "row" not in entry:
                break
            rows[entry["place"]] = entry["row"]
            self._sizes[entry["place"]] = len(line)
            size, count = size + len(line), count + 1
        with wrap_write_errors(self.file):
            os.truncate(self.file, size)
        self._lines = RecordFile(self.file, Position(size, count))
        return rows

    def add(self, row_index: int, row: str) -> None:
        """Keep a row, a JSON object, until it is removed. Raises OutputFailed."""
        line = f'{{"place":{row_index},"row":{row}}}\n'.encode()
        if self._lines is None:
            self._lines = RecordFile(self.file)
        self._lines.append(line)
        self._sizes[row_index] = len(line)

    def remove(self, row_index: int) -> None:
        """Forget a row, if the journal has it: it is in the output now."""
        if self._sizes.pop(row_index, None) is None or self._lines is None:
            return
        if not self._sizes:
            self.clear()
        elif self._lines.end.bytes > max(MIN_COMPACT_BYTES, 2 * sum(self._sizes.values())):
            self._compact()

    def sync(self) -> None:
        if self._lines is not None:
            self._lines.sync()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def clear(self) -> None:
        """Forget all rows."""
        self.close()
        with wrap_write_errors(self.file):
            self.file.unlink(missing_ok=True)

    def _compact(self) -> None:
        """Replace the file with one that holds only the remaining rows."""
        temporary = self.file.with_name(f"{self.file.name}.tmp")
        data = b"".join(
            line for line in read_lines(self.file) if json.loads(line)["place"] in self._sizes
        )
        self.close()
        with wrap_write_errors(self.file):
            temporary.write_bytes(data)
            temporary.replace(self.file)
        self._lines = RecordFile(self.file, Position(len(data), data.count(b"\n")))
