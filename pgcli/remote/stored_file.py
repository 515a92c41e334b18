"""A seekable stream over a file object of a storage library that raises RemoteError."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class StoredFile(io.RawIOBase):
    """A file of a store. `errors` makes a block that turns the library's errors into ours."""

    def __init__(self, file: Any, errors: Callable[[], AbstractContextManager[None]]):
        self._file, self._errors = file, errors

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._errors():
            return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        with self._errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = bytes(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
