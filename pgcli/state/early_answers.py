"""A file of answers that are complete before earlier rows are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pgcli.state.atomic_file import publish_file, temporary_path
from pgcli.state.record_file import Position, RecordFile, parse_row, read_lines
from pgcli.state.row_input import RowInput
from pgcli.state.write_errors import wrap_write_errors

MIN_COMPACT_BYTES = 2**20  # a smaller file is not worth compacting


class JournaledRow(NamedTuple):
    """A row and its input, which the journal of an earlier version does not have."""

    row: Mapping[str, Any]
    input: RowInput | None


class Journal:
    """Rows by row index, each kept until it is written to the output."""

    def __init__(self, file: Path):
        self.file = file
        self._sizes: dict[int, int] = {}  # bytes of each row's line
        self._lines: RecordFile | None = None

    def load(self) -> dict[int, JournaledRow]:
        """The rows that an earlier run left, by row index. They stay in the journal.

        Truncates the file after its last whole entry. Raises OutputFailed.
        """
        rows: dict[int, JournaledRow] = {}
        if not self.file.exists():
            return rows
        size = count = 0
        for line in read_lines(self.file):
            entry = parse_row(line)
            if entry is None or not isinstance(entry.get("place"), int) or "row" not in entry:
                break
            rows[entry["place"]] = JournaledRow(entry["row"], parse_input(entry.get("input")))
            self._sizes[entry["place"]] = len(line)
            size, count = size + len(line), count + 1
        with wrap_write_errors(self.file):
            os.truncate(self.file, size)
        self._lines = RecordFile(self.file, Position(size, count))
        return rows

    def add(self, row_index: int, row: str, row_input: RowInput | None = None) -> None:
        """Keep a row, a JSON object, until it is removed. Raises OutputFailed."""
        given = "" if row_input is None else f'"input":"{row_input.to_bytes().hex()}",'
        line = f'{{"place":{row_index},{given}"row":{row}}}\n'.encode()
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
        temporary = temporary_path(self.file)
        data = b"".join(
            line for line in read_lines(self.file) if json.loads(line)["place"] in self._sizes
        )
        self.close()
        with wrap_write_errors(self.file):
            temporary.write_bytes(data)
        publish_file(temporary, self.file, replace=True)
        self._lines = RecordFile(self.file, Position(len(data), data.count(b"\n")))


def parse_input(value: object) -> RowInput | None:
    """The input of a row as `add` wrote it; None for anything else."""
    try:
        return RowInput.from_bytes(bytes.fromhex(value)) if isinstance(value, str) else None
    except ValueError:
        return None
