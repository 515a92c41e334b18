"""Files that appear once they are complete, and errors of writing, with remedies."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from pgcli.errors import OutputExists, OutputFailed
from pgcli.stores.files import NotRegularFileError

#: The errors of `link` on a file system without hard links.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
MAX_NAME_BYTES = 200  # of a name within its temporary file's name; file systems allow 255


class wrap_write_errors(AbstractContextManager[None]):
    """A block that writes `name`; raises OutputFailed or OutputExists in place of an OSError.

    BrokenPipeError is not wrapped: a reader that closes its pipe is not a failure. This is no
    generator, because from Python 3.12 on an error that one replaces keeps the objects of the block
    alive, such as open folders, until garbage is collected.
    """

    def __init__(self, name: Path | str):
        self._name = name

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        if isinstance(problem, NotRegularFileError):
            raise foreign(self._name, problem.kind) from None
        if isinstance(problem, FileExistsError):
            raise already_exists(self._name) from problem
        if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
            raise OutputFailed(
                f"cannot write {self._name}: {problem.strerror or problem}",
                hint="free some space or correct the path, then run the same command again; or "
                "choose another <-o>",
            ) from problem


def foreign(name: Path | str, kind: str, wanted: str = "file") -> OutputExists:
    """The error for something at an output's place that pgcli did not write."""
    return OutputExists(
        f"{name} is {kind}, not a {wanted} that pgcli wrote",
        hint="move it away, or choose another <-o>",
    )


def already_exists(name: Path | str, detail: str = "") -> OutputExists:
    """The error for a file that must not be replaced; `detail` continues the message."""
    return OutputExists(
        f"{name} exists{detail}",
        hint="<--overwrite> replaces it, or choose another <-o>",
    )


def fsync(path: Path | str, folder: int | None = None) -> None:
    """Flush a file's bytes, or a folder's names, to disk; `folder` is an open folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close a file descriptor, also when a signal interrupts the call.

    Linux has closed the file by then. Python retries every other interrupted call itself.
    """
    with suppress(InterruptedError):
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create the folder and its parents, if missing, durably. Raises OSError."""
    if not path.parent.exists():
        make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        fsync(path.parent)


def temporary_name(name: str, ending: str = ".part") -> str:
    """A unique hidden name, also across containers and hosts."""
    return f".{os.fsencode(name)[:MAX_NAME_BYTES].decode('utf-8', 'ignore')}.{token_hex(6)}{ending}"


@contextmanager
def published(file: Path, *, replace: bool = True, is_owner: bool = False) -> Iterator[Path]:
    """A temporary path for the block to write, which becomes the file, durably, when it ends.

    It is deleted if the block fails, and stays if the process is killed; one for all processes with
    `is_owner`, if no other process writes the file. Raises OutputFailed, and without `replace`
    OutputExists if the file exists by then: of several processes the first wins.
    """
    name = f".{file.name}.part" if is_owner else temporary_name(file.name)
    with wrap_write_errors(file):
        make_folder(file.parent)
        with named_when_complete(file.with_name(name), file, replace=replace) as path:
            yield Path(path)


@contextmanager
def named_when_complete(
    temporary: Path | str,
    name: Path | str,
    folder: int | None = None,
    *,
    replace: bool,
    durable: bool = True,
) -> Iterator[Path | str]:
    """A temporary name for the block to write, which is renamed when the block ends.

    Both are in the same folder, which may be given open. Raises OSError, and FileExistsError if the
    name is taken and must not be replaced.
    """
    try:
        yield temporary
        if durable:
            fsync(temporary, folder)
        if replace:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            give_name(temporary, name, folder)
    finally:
        with suppress(OSError):  # renamed already, or it remains as after a kill
            os.unlink(temporary, dir_fd=folder)
    if durable:
        fsync(".", folder) if folder is not None else fsync(Path(name).parent)


def give_name(temporary: str | Path, name: str | Path, folder: int | None) -> None:
    """Name a temporary file, which may keep its name too. Raises OSError."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        # nobody else creates the file between the two calls: an output has one owner, and shards
        # write different files, except for the record that each of them would write
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            raise FileExistsError from problem
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def write_json(file: Path, value: Any, **options: bool) -> None:
    """Write the value as JSON, replacing the file. Raises OutputFailed."""
    with published(file, **options) as path:
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
