"""The log of all runs of an output, in a file of its state folder."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pgcli.printable import printable

#: A file of this size is renamed to `.1.txt`, replacing the one before.
MAX_BYTES = 10 * 2**20


class RunLog:
    """Lines with their times. A failure to write them does not stop the run.

    Lines are buffered until `begin`: a run that saves nothing writes nothing.
    """

    def __init__(self, file: Path):
        self._file = file
        self._buffer: list[str] | None = []

    def write(self, text: str) -> None:
        """Append a line."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        line = f"{now} {os.getpid()} {printable(text)}\n"
        if self._buffer is not None:
            self._buffer.append(line)
        else:
            self._append(line)

    def begin(self) -> None:
        """Write the buffered lines; from now on each line is written at once."""
        buffered, self._buffer = self._buffer, None
        for line in buffered or ():
            self._append(line)

    def _append(self, line: str) -> None:
        with suppress(OSError):
            if self._file.exists() and self._file.stat().st_size + len(line) > MAX_BYTES:
                self._file.replace(self._file.with_suffix(".1.txt"))
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
