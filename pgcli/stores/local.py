"""A folder of this machine: no file in it is opened through a link, and none is ever half there."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from math import inf
from pathlib import Path
from time import monotonic, sleep, time
from typing import BinaryIO

from pgcli.errors import OutputExists
from pgcli.stores.store import Entry
from pgcli.stores.writing import close, give_name, make_folder, temporary_name, wrap_write_errors

#: No link is followed, no FIFO waited for, and no terminal becomes that of the process.
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: What a file system without locks answers; there several runs may write one output.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)
HELD = (errno.EAGAIN, errno.EACCES)
POLL_SECONDS = 0.02
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.part", re.DOTALL)
ABANDONED_SECONDS = 60.0  # after which a temporary file that nobody has locked is removed
KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO"}
KINDS |= {stat.S_IFSOCK: "a socket", stat.S_IFREG: "a file"}


class Held(Exception):
    """Another process, or another part of this one, holds the lock."""


class LocalStore:
    """The files of a folder, which is opened once; see `Store`, whose errors methods raise.

    The folder itself may be a link with `follow` only. Without `create`, FileNotFoundError is
    raised where there is none. Names are those of files in it, or in folders directly in it, which
    are created when they are needed.
    """

    is_conditional = True
    _descriptor = -1

    def __init__(self, path: Path, *, create: bool = False, follow: bool = False):
        self.path, self.url = path, str(path)
        self._flags = FOLDER if follow else FOLDER | os.O_NOFOLLOW
        self._open_folder(create=create)

    def close(self) -> None:
        """Close the folder; the store cannot be used any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    __del__ = close

    def names(self) -> list[str]:
        """Everything directly in the folder, also what is no regular file, but hidden names."""
        with (
            wrap_write_errors(self.path),
            self._within("") as (_, folder),
            os.scandir(folder) as found,
        ):
            return sorted(one.name for one in found if not one.name.startswith("."))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files whose names begin so. Hidden ones, which are temporary, are left out."""
        place, slash, start = prefix.rpartition("/")
        with (
            wrap_write_errors(self.path / prefix),
            suppress(FileNotFoundError),
            self._within(prefix) as (_, folder),
            os.scandir(folder) as found,
        ):
            for file in found:
                if file.name.startswith(start) and not file.name.startswith("."):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield Entry(place + slash + file.name, status.st_size, status.st_mtime)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes | None:
        with wrap_write_errors(self.path / name):
            file = self.open(name)
            if file is None:
                return None
            with file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end + start) if start < 0 else start)
                return file.read(size)

    def create(self, name: str, data: bytes) -> bool:
        return self.publish(name, lambda file: file.write(data), replace=False)

    def replace(self, name: str, data: bytes) -> None:
        self.publish(name, lambda file: file.write(data), replace=True)

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            with (
                wrap_write_errors(self.path / name),
                suppress(FileNotFoundError),
                self._within(name) as (leaf, folder),
            ):
                self._check(name, os.stat(leaf, dir_fd=folder, follow_symlinks=False))
                os.unlink(leaf, dir_fd=folder)
                folders.add(name.rpartition("/")[0])
        for changed in folders:
            self.sync(f"{changed}/x")

    def publish(
        self, name: str, write: Callable[[BinaryIO], object], *, replace: bool = True
    ) -> bool:
        """Write a file with `write`, and name it when everything is on disk.

        Returns False where a file of the name exists and is not to be replaced: of several
        processes the first one wins. Killed before that, it leaves a temporary file at most.
        """
        with (
            wrap_write_errors(self.path / name),
            self._within(name, create=True) as (leaf, folder),
        ):
            with suppress(FileNotFoundError):
                self._check(name, os.stat(leaf, dir_fd=folder, follow_symlinks=False))
                if not replace:
                    return False
            temporary = temporary_name(leaf)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY
            file = os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb")
            try:
                with suppress(OSError):  # locked until it is closed: see remove_abandoned
                    has_lock(file.fileno())
                write(file)
                file.flush()
                os.fsync(file.fileno())
                is_named = give_name(temporary, leaf, folder, replace=replace)
            finally:
                with suppress(FileNotFoundError):  # it was renamed
                    os.unlink(temporary, dir_fd=folder)
                with suppress(InterruptedError):  # by `close`, after everything is written
                    file.close()
            os.fsync(folder)
            return is_named

    def open(self, name: str) -> BufferedReader | None:
        """A file, opened for reading; None if there is none."""
        with wrap_write_errors(self.path / name), suppress(FileNotFoundError):
            return os.fdopen(self._open(name, os.O_RDONLY), "rb")
        return None

    def open_append(self, name: str) -> int:
        """The descriptor of a file, at its end; the file is created if there is none."""
        with wrap_write_errors(self.path / name):
            descriptor = self._open(name, os.O_RDWR | os.O_CREAT)
            try:
                os.lseek(descriptor, 0, os.SEEK_END)
                self.sync(name)
            except BaseException:
                close(descriptor)
                raise
            return descriptor

    def is_named(self, name: str, descriptor: int) -> bool:
        """Whether the open file still has the name: it was neither removed nor replaced."""
        with (
            wrap_write_errors(self.path / name),
            suppress(FileNotFoundError),
            self._within(name) as (leaf, folder),
        ):
            status = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
            return os.path.samestat(os.fstat(descriptor), status)
        return False

    def sync(self, name: str = "") -> None:
        """Flush the names of the folder that holds a file to disk."""
        with wrap_write_errors(self.path / name), self._within(name) as (_, folder):
            os.fsync(folder)

    def make_folder(self, name: str) -> None:
        """Create a folder in this one if it does not exist, durably."""
        with wrap_write_errors(self.path / name), self._within(f"{name}/", create=True):
            pass

    def remove_folders(self) -> None:
        """Remove the folders in this one that are empty, and this one if nothing is in it then."""
        with suppress(OSError), self._within("") as (_, here), os.scandir(here) as found:
            for folder in found:
                with suppress(OSError):
                    os.rmdir(folder.name, dir_fd=here)
            self.path.rmdir()

    def remove_abandoned(self, folder: str = "", start: str = ".") -> None:
        """Remove the temporary files of processes that were killed: those nobody has locked.

        Those whose names begin with `start` only.
        """
        with suppress(OSError), self._within(f"{folder}/") as (_, here), os.scandir(here) as found:
            for name in (file.name for file in found if is_temporary(file.name, start)):
                with suppress(OSError):
                    descriptor = os.open(name, os.O_RDWR | SAFELY, dir_fd=here)
                    try:
                        age = time() - os.fstat(descriptor).st_mtime
                        if age > ABANDONED_SECONDS and has_lock(descriptor):
                            os.unlink(name, dir_fd=here)
                    finally:
                        release(descriptor)

    @contextmanager
    def lock(
        self, name: str, *, shared: bool = False, timeout_seconds: float = inf
    ) -> Iterator[Callable[[], None]]:
        """A block in which the file is locked; the system unlocks it if the process is killed.

        A shared lock excludes exclusive ones only; calling what is yielded makes an exclusive lock
        shared, or raises Held. Raises Held where another one has the lock for so long.
        """
        with wrap_write_errors(self.path / name):
            descriptor = self._acquire(name, shared, monotonic() + timeout_seconds)

        def share() -> None:
            if has_lock(descriptor, shared=True) is False:  # another process was faster
                raise Held

        try:
            yield share
        finally:
            release(descriptor)

    def _acquire(self, name: str, shared: bool, deadline: float) -> int:
        """The descriptor of the locked file. Raises Held and OSError."""
        while True:
            try:
                descriptor = self._open(name, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # a run that saved nothing removed the folder meanwhile
                self._open_folder(create=True)
                continue
            try:
                is_held_elsewhere = has_lock(descriptor, shared=shared) is False
                if not is_held_elsewhere and self.is_named(name, descriptor):
                    return descriptor
            except BaseException:
                release(descriptor)
                raise
            release(descriptor)
            if monotonic() >= deadline:
                raise Held
            sleep(POLL_SECONDS)

    def _open_folder(self, *, create: bool) -> None:
        self.close()
        if create:
            with wrap_write_errors(self.path):
                make_folder(self.path)
        with wrap_write_errors(self.path), suppress(FileNotFoundError):
            try:
                self._descriptor = os.open(self.path, self._flags)
            except NotADirectoryError:
                raise self._foreign("", self.path.lstat()) from None
            return
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)

    @contextmanager
    def _within(self, name: str, *, create: bool = False) -> Iterator[tuple[str, int]]:
        """The name in its folder, and the descriptor of that folder. Raises OSError."""
        folder, _, leaf = name.rpartition("/")
        assert "/" not in folder, name  # of which links would be followed
        if folder and create:
            with suppress(FileExistsError):
                os.mkdir(folder, dir_fd=self._descriptor)
                os.fsync(self._descriptor)
        try:
            flags = FOLDER | os.O_NOFOLLOW
            descriptor = os.open(folder or ".", flags, dir_fd=self._descriptor)
        except NotADirectoryError:
            status = os.stat(folder, dir_fd=self._descriptor, follow_symlinks=False)
            raise self._foreign(folder, status) from None
        try:
            yield leaf, descriptor
        finally:
            close(descriptor)

    def _open(self, name: str, flags: int) -> int:
        """The descriptor of a regular file. Nothing else is opened. Raises OSError."""
        with self._within(name, create=bool(flags & os.O_CREAT)) as (leaf, folder):
            with suppress(FileNotFoundError):
                self._check(name, os.stat(leaf, dir_fd=folder, follow_symlinks=False))
            descriptor = os.open(leaf, flags | SAFELY, 0o666, dir_fd=folder)
            try:
                self._check(name, os.fstat(descriptor))  # if it was replaced meanwhile
            except BaseException:
                close(descriptor)
                raise
            return descriptor

    def _check(self, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._foreign(name, status)

    def _foreign(self, name: str, status: os.stat_result) -> OutputExists:
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        return OutputExists(
            f"{self.path / name} is {kind}, which this program did not make",
            hint="move it away, or choose another -o",
        )


def is_temporary(name: str, start: str) -> bool:
    """Whether a file begins so and was never complete."""
    return name.startswith(start) and TEMPORARY.fullmatch(name) is not None


def has_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock the open file without waiting: False if it is held, None if there are no locks here.

    Raises OSError.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in HELD:
            return False
        if problem.errno in NO_LOCKS:
            return None
        raise
    return True


def release(descriptor: int) -> None:
    """Unlock and close a file."""
    with suppress(OSError):  # closing it unlocks it too, unless a forked process has it open
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with suppress(OSError):  # nothing was written to it
        os.close(descriptor)
