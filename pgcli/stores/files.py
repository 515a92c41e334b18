"""Opens files by name: regular files only, and where it is asked for only those below a folder."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from pgcli.printable import is_deep

#: A path that refers to nothing, so that opening neither waits for a FIFO nor acts on a device.
_O_PATH = getattr(os, "O_PATH", 0)
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
#: A pipe of `<(command)`, which the shell has opened for this process.
_SHELL_PIPE = re.compile(r"/dev/fd/\d+|/proc/self/fd/\d+|/dev/stdin|/dev/null")

FilePath = str | bytes | os.PathLike[str]


class NotRegularFileError(OSError):
    """The path leads to a folder, a pipe, a socket or a device."""

    def __init__(self, path: FilePath):
        super().__init__(errno.EINVAL, "it is not a regular file", os.fsdecode(path))

    def __str__(self) -> str:
        return str(self.strerror)


class OutsideFolderError(OSError):
    """The path leads outside the folder that its file has to be in."""

    def __init__(self, path: FilePath):
        super().__init__(errno.EXDEV, "it is outside its folder", os.fsdecode(path))


def open_regular(path: FilePath, folder: str | None = None) -> BufferedReader:
    """A regular file, opened for reading. Nothing else is opened, whatever happens to the path.

    With a `folder` (a real path), the file that was opened has to be in it, links resolved: a link
    that is replaced meanwhile changes nothing. Raises NotRegularFileError, OutsideFolderError, and
    what `os.open` raises.
    """
    first = os.open(path, _O_PATH | os.O_CLOEXEC if _O_PATH else _READ)
    try:
        if not stat.S_ISREG(os.fstat(first).st_mode):
            raise NotRegularFileError(path)
        if folder is not None and not _is_in(folder, first, path):
            raise OutsideFolderError(path)
        if not _O_PATH:
            return os.fdopen(os.dup(first), "rb")
        return open(_reopen(first, path), "rb")
    finally:
        os.close(first)


def read_text(path: FilePath, encoding: str = "utf-8") -> str:
    """The text of a file that the user named; it may also be a pipe of the shell, or /dev/null.

    Raises OSError and UnicodeError.
    """
    if _SHELL_PIPE.fullmatch(os.fsdecode(path)):
        with open(path, encoding=encoding) as pipe:
            return pipe.read()
    with open_regular(path) as file:
        return file.read().decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_json(file: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None if the file is missing or damaged."""
    try:
        return parse_values(read_text(file))
    except (OSError, ValueError):
        return None


def parse_values(text: str | bytes | None) -> dict[str, Any] | None:
    """The JSON object of the text; None for any other text, and for none."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deep(value) else None


def _reopen(descriptor: int, path: FilePath) -> int:
    """The same file, opened for reading."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", _READ)
    except FileNotFoundError:  # /proc is not mounted
        reading = os.open(path, _READ)
        if os.path.samestat(os.fstat(reading), os.fstat(descriptor)):
            return reading
        os.close(reading)
        raise NotRegularFileError(path) from None


def _is_in(folder: str, descriptor: int, path: FilePath) -> bool:
    """Whether the open file is in the folder, by the path that the system knows of it."""
    try:
        found = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:  # there is no /proc: the same file has to be at the path's real path
        found = os.path.realpath(os.fsdecode(path))
        if not os.path.samestat(os.lstat(found), os.fstat(descriptor)):
            return False
    return found == folder or found.startswith(folder.rstrip("/") + "/")
