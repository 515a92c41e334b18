"""Opens files by name: only regular files, and on request only files below a folder."""

from __future__ import annotations

import errno
import os
import re
import stat
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from pgcli.errors import UsageError
from pgcli.records import OUTSIDE_FOLDER, Fault
from pgcli.text import (
    LFS_HEAD_BYTES,
    LFS_HINT,
    LFS_MESSAGE,
    is_lfs_pointer,
    json_object,
    without_marks,
)

#: Opening never waits for a FIFO, and no terminal becomes the process's own.
SAFELY = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO"}
KINDS |= {stat.S_IFSOCK: "a socket", stat.S_IFREG: "a file"}
#: A pipe from `<(command)`, which the shell has opened for this process.
_SHELL_PIPE = re.compile(r"/dev/fd/\d+|/proc/self/fd/\d+|/dev/stdin|/dev/null")

FilePath = str | bytes | os.PathLike[str]


class NotRegularFileError(OSError):
    """The path leads to a folder, a pipe, a socket or a device, named by `kind`."""

    def __init__(self, path: FilePath, mode: int):
        super().__init__(errno.EINVAL, "not a regular file", os.fsdecode(path))
        self.kind = kind_of(mode)

    def __str__(self) -> str:
        return str(self.strerror)


class OutsideFolderError(OSError):
    """The path leads outside the folder that must contain the file."""

    def __init__(self, path: FilePath):
        super().__init__(errno.EXDEV, "outside its folder", os.fsdecode(path))


NO_SUCH_FILE = Fault("missing", "The file does not exist.")
NOT_A_FILE = Fault("not_a_regular_file", "This is a directory, pipe, socket or device, not a file.")


def file_fault(problem: Exception) -> Fault:
    """The fault of an image whose file cannot be opened or read, for an error of `open_regular`."""
    if isinstance(problem, NotRegularFileError):
        return NOT_A_FILE
    if isinstance(problem, OutsideFolderError):
        return OUTSIDE_FOLDER
    if isinstance(problem, PermissionError):
        return Fault("permission_denied", "No permission to read the file.")
    # other errors are an invalid character in the path, such as NUL
    if isinstance(problem, FileNotFoundError | NotADirectoryError) or not isinstance(
        problem, OSError
    ):
        return NO_SUCH_FILE
    reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
    return Fault("io_error", f"Reading the file failed: {reason}.")


def parse_path(text: str) -> str:
    """The path of a `file:` URI, undecodable bytes as surrogates; other text unchanged."""
    if not text.startswith("file:"):
        return text
    path = text.removeprefix("file:")
    if path.startswith("//"):
        path = path.removeprefix("//").removeprefix("localhost")
    return os.fsdecode(unquote_to_bytes(path.encode("utf-8", "surrogateescape")))


def resolves_inside(path: str, root: str) -> bool:
    """Whether the path, all links resolved, is in `root` (a real path)."""
    try:
        target = os.path.realpath(path)
    except ValueError:  # not a possible file name: NUL, half of a surrogate pair
        return False
    return target == root or target.startswith(root.rstrip("/") + "/")


def kind_of(mode: int) -> str:
    """The kind of file with this mode, for messages."""
    return KINDS.get(stat.S_IFMT(mode), "a device")


def open_regular(path: FilePath, folder: str | None = None) -> BufferedReader:
    """A regular file, opened for reading.

    With a `folder` (a real path), the opened file must be in it after links are resolved; replacing
    a link meanwhile has no effect. Raises NotRegularFileError, OutsideFolderError, and the errors
    of `os.open`.
    """
    file = os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")
    if folder is not None and not _is_in(folder, file.fileno(), path):
        file.close()
        raise OutsideFolderError(path)
    return file


def open_descriptor(path: FilePath, flags: int, folder: int | None = None) -> int:
    """The descriptor of a regular file; the path may be relative to an open folder.

    Other kinds of files are not opened, because opening a device may act on it; one that replaces
    the file just then is not used. Raises NotRegularFileError, and the errors of `os.open`.
    """
    is_regular(path, folder, follow=not flags & os.O_NOFOLLOW)
    descriptor = os.open(path, flags | SAFELY, 0o666, dir_fd=folder)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegularFileError(path, mode)
    return descriptor


def is_regular(path: FilePath, folder: int | None = None, *, follow: bool = False) -> bool:
    """Whether there is a regular file at the path; False if nothing is there.

    Raises NotRegularFileError for anything else, and OSError.
    """
    try:
        mode = os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise NotRegularFileError(path, mode)
    return True


def read_text(path: FilePath) -> str:
    """The text of a file that the user named, which may also be a shell pipe or /dev/null.

    Byte order marks are removed and line ends are newlines. Raises UsageError for a pointer file
    of Git LFS, OSError and UnicodeError.
    """
    is_pipe = _SHELL_PIPE.fullmatch(os.fsdecode(path))
    with TextIOWrapper(open(path, "rb") if is_pipe else open_regular(path), "utf-8") as file:
        text = file.read()
    if is_lfs_pointer(text.encode()[:LFS_HEAD_BYTES]):
        raise UsageError(f"{os.fsdecode(path)} {LFS_MESSAGE}", hint=LFS_HINT)
    return without_marks(text)


def refuse_pointer(path: FilePath) -> None:
    """Raise UsageError for a pointer file of Git LFS, and OSError for an unreadable file."""
    with open_regular(path) as file:
        if is_lfs_pointer(file.read(LFS_HEAD_BYTES)):
            raise UsageError(f"{os.fsdecode(path)} {LFS_MESSAGE}", hint=LFS_HINT)


def read_json(file: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None if the file is missing or damaged."""
    try:
        return json_object(read_text(file).encode())
    except (OSError, UnicodeError):
        return None


def _is_in(folder: str, descriptor: int, path: FilePath) -> bool:
    """Whether the open file is in the folder, by the path that the system reports for it."""
    try:
        real = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:  # without /proc: the real path must lead to the same file
        real = os.path.realpath(os.fsdecode(path))
        if not os.path.samestat(os.lstat(real), os.fstat(descriptor)):
            return False
    return real.startswith(folder.rstrip("/") + "/")
