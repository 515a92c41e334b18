"""A temporary file with the rows of a run and with the bytes of images that no file holds."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.records import Item
    from pgcli.training.training_row import TrainingRow


class RowStore:
    """Data that is appended, and read at random: rows, and images of tables and archives.

    Rows are read in random order in every epoch, which tables and compressed archives do not allow.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the store
        self._size = 0
        self._is_flushed = True

    def add(self, data: bytes) -> tuple[int, int]:
        """Append the data; return where it begins, and its size."""
        self._file.write(data)
        self._is_flushed = False
        self._size += len(data)
        return self._size - len(data), len(data)

    def read(self, start: int, size: int) -> bytes:
        """The data that was appended."""
        if not self._is_flushed:
            self._file.flush()
            self._is_flushed = True
        return os.pread(self._file.fileno(), size, start)

    def item(self, row: TrainingRow) -> Item:
        """The row's item, with its bytes where they are stored here."""
        return (
            row.item if row.bytes_at is None else replace(row.item, data=self.read(*row.bytes_at))
        )

    def close(self) -> None:
        self._file.close()
