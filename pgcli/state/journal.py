"""Rows that wait for earlier ones, safe meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgcli.state.record_file import Mark, RecordFile, lines, parsed
from pgcli.state.write_errors import writing

SMALL = 2**20  # bytes up to which it is not worth making the file smaller


class Journal:
    """A file of rows by their places; those that have left are let go now and then."""

    def __init__(self, file: Path):
        self.file = file
        self._waiting: dict[int, int] = {}  # bytes of each
        self._log: RecordFile | None = None

    def rows(self) -> dict[int, Mapping[str, Any]]:
        """The rows that a run before this one left waiting, by their places; they stay waiting.

        What was being written when the process was killed is cut off. Raises OutputFailed.
        """
        found: dict[int, Mapping[str, Any]] = {}
        if not self.file.exists():
            return found
        size = 0
        for line in lines(self.file):
            entry = parsed(line)
            if entry is None or not isinstance(entry.get("place"), int) or "row" not in entry:
                break
            found[entry["place"]] = entry["row"]
            self._waiting[entry["place"]] = len(line)
            size += len(line)
        with writing(self.file):
            os.truncate(self.file, size)
        self._log = RecordFile(self.file, Mark(size, len(found)))
        return found

    def add(self, place: int, row: str) -> None:
        """Keep a row, which is a JSON object, till it leaves. Raises OutputFailed."""
        line = f'{{"place":{place},"row":{row}}}\n'.encode()
        if self._log is None:
            self._log = RecordFile(self.file)
        self._log.add(line)
        self._waiting[place] = len(line)

    def leave(self, place: int) -> None:
        """The row is in the output now."""
        if self._waiting.pop(place, None) is None or self._log is None:
            return
        if not self._waiting:
            self.clear()
        elif self._log.mark.bytes > max(SMALL, 2 * sum(self._waiting.values())):
            self._shrink()

    def sync(self) -> None:
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def clear(self) -> None:
        """Forget all rows."""
        self.close()
        with writing(self.file):
            self.file.unlink(missing_ok=True)

    def _shrink(self) -> None:
        """Leave only the rows that still wait, in a new file that takes the old one's name."""
        beside = self.file.with_name(f"{self.file.name}.tmp")
        kept = b"".join(
            line for line in lines(self.file) if json.loads(line)["place"] in self._waiting
        )
        self.close()
        with writing(self.file):
            beside.write_bytes(kept)
            beside.replace(self.file)
        self._log = RecordFile(self.file, Mark(len(kept), kept.count(b"\n")))
