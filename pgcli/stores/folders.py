"""A folder on this machine, without opening links in it and without half-written files."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedReader
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, NamedTuple

from pgcli.errors import OutputExists, OutputFailed
from pgcli.stores.files import is_regular, kind_of, open_descriptor
from pgcli.stores.writing import (
    foreign,
    make_folder,
    named_when_complete,
    temporary_name,
    wrap_write_errors,
)

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
CREATE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
#: The errors of a file system without locks; several runs may write one output there.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)
POLL_SECONDS = 0.02
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.part", re.DOTALL)


class Entry(NamedTuple):
    """A file in a listing; `modified` is in seconds since 1970, by the store's clock."""

    name: str
    size: int
    modified: float


class Version(NamedTuple):
    """The content of a file, its time of writing by the store's clock, and the version's tag."""

    data: bytes
    modified: float
    tag: Any = None


class Held(Exception):
    """Another process, or another thread of this one, holds the lock."""


class LocalStore:
    """The files of a folder on this machine, which is opened once.

    The folder itself may be a link only with `follow`. Without `create`, a missing folder raises
    FileNotFoundError. Names are paths relative to the folder; missing subfolders are created. A
    method that fails raises OutputFailed, or OutputExists if something other than a regular file
    has the name. An ObjectStore has the same methods, except those for processes of this machine.
    """

    _descriptor = -1

    def __init__(self, path: Path, *, create: bool = False, follow: bool = False):
        self.path, self.url = path, str(path)
        self._flags = FOLDER if follow else FOLDER | os.O_NOFOLLOW
        self._open_folder(create=create)

    def close(self) -> None:
        """Close the folder; the store is unusable afterwards."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close

    def names(self, folder: str = "") -> list[str]:
        """The names of everything directly in the folder, including hidden files."""
        with self._errors(folder), self._within(f"{folder}/") as (_, here):
            return sorted(os.listdir(here))  # noqa: PTH208 - a descriptor

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files with this prefix, in no particular order, without hidden (temporary) files.

        Only files directly in one folder: `open/` lists the folder `open`, `op` does not.
        """
        with (
            self._errors(prefix),
            suppress(FileNotFoundError),
            self._within(prefix) as (start, folder),
            os.scandir(folder) as files,
        ):
            for file in files:
                if file.name.startswith(start) and not file.name.startswith("."):
                    with suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            name = prefix[: len(prefix) - len(start)] + file.name
                            yield Entry(name, status.st_size, status.st_mtime)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""
        version = self.version(name)
        return None if version is None else version.data

    def create(self, name: str, data: bytes) -> bool:
        """Write a file; False if the name is taken. Readers never see a part of it.

        In an object store, an existing file with the same content counts as written. Without
        conditional writes or hard links, a file that another process creates at the same moment is
        replaced.
        """
        return self.publish(name, lambda file: file.write(data), replace=False)

    def replace(self, name: str, data: bytes) -> None:
        """Replace or create the file. Readers see the old content or the new."""
        self.publish(name, lambda file: file.write(data), replace=True)

    def version(self, name: str) -> Version | None:
        """The current version of a file; None if it does not exist."""
        file = self.open(name)
        if file is None:
            return None
        with self._errors(name), file:
            return Version(file.read(), os.fstat(file.fileno()).st_mtime)

    def swap(self, name: str, data: bytes, version: Version | None) -> bool:
        """Replace this version of a file; False if the current version differs.

        With None it must not exist. Where a store lacks conditional writes, and on this machine, a
        version that another process writes at the same moment may be replaced too.
        """
        if version is None:
            return self.create(name, data)
        is_current = self.version(name) == version
        if is_current:
            self.replace(name, data)
        return is_current

    def folders(self) -> Sequence[str]:
        """The names of the folders directly in this one."""
        with self._errors(""), self._within("") as (_, here), os.scandir(here) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        folders = set()
        for name in names:
            with (
                self._errors(name),
                suppress(FileNotFoundError),
                self._within(name) as (leaf, folder),
            ):
                if is_regular(leaf, folder):
                    os.unlink(leaf, dir_fd=folder)
                    folders.add(name.rpartition("/")[0])
        for changed in folders:
            with self._errors(changed), self._within(f"{changed}/") as (_, folder):
                os.fsync(folder)

    def publish(
        self,
        name: str,
        write: Callable[[BinaryIO], object],
        *,
        replace: bool = True,
        durable: bool = True,
    ) -> bool:
        """Write a file with `write`, and name it when everything is on disk.

        Returns False if a file of the name exists and must not be replaced. A process that is
        killed before then leaves at most a temporary file. Without `durable`, nothing is flushed to
        disk, and a link of the name is replaced, too.
        """
        with self._errors(name), self._within(name, create=True) as (leaf, folder):
            if durable and is_regular(leaf, folder) and not replace:
                return False
            try:
                with named_when_complete(
                    temporary_name(leaf), leaf, folder, replace=replace, durable=durable
                ) as temporary:
                    descriptor = open_descriptor(temporary, CREATE | os.O_EXCL, folder)
                    with os.fdopen(descriptor, "wb") as file:
                        write(file)
            except FileExistsError:
                return False
        return True

    def open(self, name: str) -> BufferedReader | None:
        """A file, opened for reading; None if it does not exist."""
        with self._errors(name), suppress(FileNotFoundError), self._within(name) as (leaf, folder):
            return os.fdopen(open_descriptor(leaf, os.O_RDONLY | os.O_NOFOLLOW, folder), "rb")
        return None

    def open_append(self, name: str) -> int:
        """The descriptor of a file, at its end; a missing file is created.

        A hard link is rejected, as the file may belong to another folder.
        """
        with self._errors(name), self._within(name, create=True) as (leaf, folder):
            descriptor = open_descriptor(leaf, CREATE, folder)
            try:
                if os.fstat(descriptor).st_nlink > 1:
                    raise foreign(self.path / name, "a hard link")
                os.lseek(descriptor, 0, os.SEEK_END)
                os.fsync(folder)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    def remove_folders(self) -> None:
        """Remove the empty folders in this one, and this one if nothing else is in it."""
        with suppress(OSError, OutputExists, OutputFailed):
            for name in self.names():
                with suppress(OSError):
                    os.rmdir(name, dir_fd=self._descriptor)
            self.path.rmdir()

    def remove_abandoned(self, folder: str = "", is_own: Callable[[str], object] = bool) -> None:
        """Remove the temporary files that killed processes left, for names of our own.

        Only safe while no other process writes files of these names.
        """
        with suppress(OutputExists, OutputFailed):
            for match in filter(None, map(TEMPORARY.fullmatch, self.names(folder))):
                if is_own(match[1]):
                    with suppress(OutputExists, OutputFailed):
                        self.delete([f"{folder}/{match[0]}".lstrip("/")])

    @contextmanager
    def lock(
        self, name: str, *, shared: bool = False, timeout_seconds: float = inf
    ) -> Iterator[None]:
        """A block in which the file is locked; the system unlocks it if the process is killed.

        A shared lock excludes only exclusive ones. Raises Held if another process keeps the lock
        for so long.
        """
        with self._errors(name):
            descriptor = self._acquire(name, shared, monotonic() + timeout_seconds)
        try:
            yield
        finally:
            release(descriptor)

    def is_locked(self, name: str) -> bool | None:
        """Whether anyone, this process included, holds the exclusive lock of a file.

        None if unknown, such as on a file system without locks. Raises OutputExists.
        """
        try:
            file = self.open(name)
        except OutputFailed:
            return None
        if file is None:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as problem:
                return isinstance(problem, BlockingIOError | PermissionError) or None
        return False

    def _acquire(self, name: str, shared: bool, deadline: float) -> int:
        """The descriptor of the locked file. Raises Held and OSError."""
        while True:
            try:
                with self._within(name, create=True) as (leaf, folder):
                    descriptor, is_ours = open_descriptor(leaf, CREATE, folder), False
                    try:
                        if self._try_lock(descriptor, name, shared=shared):
                            named = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
                            is_ours = os.path.samestat(os.fstat(descriptor), named)
                    finally:
                        if not is_ours:
                            release(descriptor)
                    if is_ours:
                        return descriptor
            except FileNotFoundError:  # a run that saved nothing removed the folder or the file
                self._open_folder(create=True)
                continue
            if monotonic() >= deadline:
                raise Held
            sleep(POLL_SECONDS)

    def _try_lock(self, descriptor: int, name: str, *, shared: bool) -> bool:
        """Whether the open file is locked now, or the file system has no locks.

        Raises OutputFailed if the file system's locks do not work.
        """
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as problem:
            if problem.errno not in NO_LOCKS:
                raise OutputFailed(
                    f"cannot lock {self.path / name}: {problem.strerror}",
                    hint="the file system needs working locks (flock); start its lock service, or "
                    "choose an <-o> on another disk",
                ) from problem
        return True

    def _open_folder(self, *, create: bool) -> None:
        self.close()
        with wrap_write_errors(self.path):
            if create:
                make_folder(self.path)
            try:
                self._descriptor = os.open(self.path, self._flags)
                return
            except FileNotFoundError:
                pass
            except NotADirectoryError:
                if os.path.lexists(self.path):
                    raise foreign(self.path, kind_of(self.path.lstat().st_mode)) from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)

    @contextmanager
    def _within(self, name: str, *, create: bool = False) -> Iterator[tuple[str, int]]:
        """The name in its folder, and the folder's descriptor. Raises OSError."""
        path, _, leaf = name.rpartition("/")
        folders = [folder for folder in path.split("/") if folder]
        assert not {".", ".."} & {*folders, leaf}, name
        descriptor = os.open(".", FOLDER, dir_fd=self._descriptor)
        try:
            for number, folder in enumerate(folders, 1):
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=descriptor)
                        os.fsync(descriptor)
                try:
                    below = os.open(folder, FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                except NotADirectoryError:
                    status = os.stat(folder, dir_fd=descriptor, follow_symlinks=False)
                    blocked = self.path.joinpath(*folders[:number])
                    raise foreign(blocked, kind_of(status.st_mode), "folder") from None
                os.close(descriptor)
                descriptor = below
            yield leaf, descriptor
        finally:
            os.close(descriptor)

    def _errors(self, name: str) -> AbstractContextManager[None]:
        """A block that uses a file; raises OutputExists and OutputFailed in place of an OSError."""
        return wrap_write_errors(self.path / name)


def release(descriptor: int) -> None:
    """Unlock and close a file."""
    with suppress(OSError):  # closing it unlocks it too, unless a forked process holds it open
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with suppress(OSError):
        os.close(descriptor)
