"""A file with the input of each row of an output, by which changed input is noticed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pgcli.state.row_input import RECORD_BYTES, RowInput
from pgcli.state.write_errors import close, fsync, make_folder, wrap_write_errors

RECORDS_PER_READ = 4096


class InputRecords:
    """Records of equal size by row index, each written before its row is.

    A row may have none: runs of earlier versions kept none, and a power loss may lose the last.
    Records after the last row are stale. With `is_new` an existing file is not read;
    `is_read_only` records need no permission to write.
    """

    def __init__(self, file: Path, *, is_new: bool = False, is_read_only: bool = False):
        self.file = file
        self._is_new = is_new
        self._descriptor: int | None = None
        self._block: tuple[int, bytes] = (0, b"")
        self._has_durable_name = False
        if not is_new:
            with wrap_write_errors(file), suppress(FileNotFoundError):
                access = os.O_RDONLY if is_read_only else os.O_RDWR
                self._descriptor = os.open(file, access | os.O_CLOEXEC)

    def read(self, row_index: int) -> RowInput | None:
        """The input of a saved row; None if it is not known."""
        start, block = self._block
        at = (row_index - start) * RECORD_BYTES
        if not 0 <= at < len(block):
            block = self._read_block(row_index)
            self._block, at = (row_index, block), 0
        return RowInput.from_bytes(block[at : at + RECORD_BYTES])

    def write(self, row_index: int, *inputs: RowInput) -> None:
        """Store the inputs of rows that are to be saved, from this one on. Raises OutputFailed."""
        data, at = b"".join(one.to_bytes() for one in inputs), row_index * RECORD_BYTES
        with wrap_write_errors(self.file):
            while data:
                written = os.pwrite(self._open(), data, at)
                data, at = data[written:], at + written

    def rename(self, file: Path) -> None:
        """Give the file another name, replacing the file that has it."""
        if self._descriptor is not None:
            with wrap_write_errors(file):
                self.file.replace(file)
            self.file, self._has_durable_name = file, False

    def sync(self) -> None:
        """Flush all records to disk. Raises OutputFailed."""
        if self._descriptor is None:
            return
        with wrap_write_errors(self.file):
            os.fsync(self._descriptor)
            if not self._has_durable_name:
                fsync(self.file.parent)
                self._has_durable_name = True

    def close(self) -> None:
        if self._descriptor is not None:
            with wrap_write_errors(self.file):
                close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            make_folder(self.file.parent)
            creation = os.O_CREAT | (os.O_TRUNC if self._is_new else 0)
            self._descriptor = os.open(self.file, os.O_RDWR | os.O_CLOEXEC | creation, 0o666)
        return self._descriptor

    def _read_block(self, row_index: int) -> bytes:
        if self._descriptor is None:
            return b""
        with wrap_write_errors(self.file):
            size = RECORDS_PER_READ * RECORD_BYTES
            return os.pread(self._descriptor, size, row_index * RECORD_BYTES)
