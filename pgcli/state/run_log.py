"""What was said while an output was made, by all its runs, in a file beside it."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pgcli.printable import printable

#: A file of so many bytes becomes the one before; of two that were full the older one is let go.
MOST_BYTES = 10 * 2**20


class RunLog:
    """Lines with their times. A disk that takes none of them stops no run.

    Nothing is written before the output is begun: until then lines are held.
    """

    def __init__(self, file: Path):
        self._file = file
        self._held: list[str] | None = []

    def note(self, text: str) -> None:
        """Add a line."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        line = f"{now} {os.getpid()} {printable(text)}\n"
        if self._held is not None:
            self._held.append(line)
        else:
            self._write(line)

    def begin(self) -> None:
        """Write from now on, first what was held."""
        held, self._held = self._held, None
        for line in held or ():
            self._write(line)

    def _write(self, line: str) -> None:
        with suppress(OSError):
            if self._file.exists() and self._file.stat().st_size + len(line) > MOST_BYTES:
                self._file.replace(self._file.with_suffix(".1.txt"))
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
