"""Writes files and folders: checked before a command starts, named when they are complete."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from glob import has_magic, iglob
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.stores.files import NotRegularFileError, parse_path, resolves_inside
from pgcli.stores.urls import has_credentials, is_in_object_store, url_scheme, without_credentials

#: A file in every folder that an export or a page wrote; other folders are never replaced.
MARK = ".pgcli-export"
TargetKind = Literal["file", "folder", "whole folder"]
SYNC_THREADS = 16  # file systems write the journal once for several concurrent syncs


@dataclass(frozen=True, kw_only=True)
class Target:
    """A file or folder that a command writes, named by the `option`.

    Files are added to a `folder`; a `whole folder`, like a file, is renamed into place when
    complete, and replaces only a folder that an export wrote. `overwrite` permits replacing files.
    `inputs` are sources that must not be overwritten. The output of a run (`is_run`) may be a
    folder in an object store.
    """

    name: str
    kind: TargetKind = "file"
    option: str = "-o"
    overwrite: bool = False
    inputs: Sequence[str] = ()
    is_run: bool = False

    @property
    def path(self) -> Path:
        """The path on this machine."""
        return Path(self.name)

    def check(self) -> None:
        """Raise if the target cannot be written, or must not be replaced.

        Creates nothing: missing parent folders are created later. Raises UsageError for the wrong
        kind and for an input, OutputExists for a path that must not be replaced, and OutputFailed
        without permission.
        """
        if self.name in ("", "-"):
            noun, value = ("file", "FILE") if self.kind == "file" else ("folder", "DIR")
            raise UsageError(
                f"<{self.option}=> needs the name of a {noun}"
                + (", not standard output" if self.name else ""),
                hint=f"use <{self.option} {value}>",
            )
        if url_scheme(self.name) is not None:
            return self._check_address()
        for source in self.inputs:
            self._check_input(source)
        return self._check_path()

    @property
    def _hint(self) -> str:
        return f"choose another <{self.option}=>"

    @cached_property
    def _root(self) -> str:
        return os.path.realpath(self.path)

    @property
    def _has_run(self) -> bool:
        """Whether the target is the output of a run, which has its state beside it."""
        return os.path.lexists(f"{self.name.rstrip('/')}.pgcli/run.json")

    def refuse_inside(self, source: str) -> None:
        """Raise UsageError for an input that is the target, or in its folder."""
        if "\0" in source:
            return
        is_same = os.path.realpath(source) == self._root
        with suppress(OSError):  # another spelling, where file systems ignore case
            is_same |= Path(source).samefile(self._root)
        if is_same or resolves_inside(source, self._root):
            what = "would be overwritten" if is_same else f"is in {self.name}, which is written"
            kind = "an input" if os.path.lexists(source) else "another output"
            name = self.name if is_same else source
            raise UsageError(f"{name} is {kind} and {what}", hint=self._hint)

    @contextmanager
    def publish(self) -> Iterator[Path]:
        """A temporary path for the block to write, which becomes the target when the block ends.

        It is deleted if the block fails. For a folder to which files are added, it is the folder
        itself, created if missing. Raises OutputFailed, and OutputExists for a target that was
        written meanwhile.
        """
        path = self.path
        if self.kind == "file":
            with published(path, replace=self.overwrite) as part:
                yield part
                self._check_path()
            return
        if self.kind == "folder":
            with wrap_write_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            yield path
            return
        part = path.with_name(temporary_name(path.name))
        with wrap_write_errors(path):
            try:
                make_folder(part)
                (part / MARK).write_text("made by pgcli export\n", encoding="utf-8")
                yield part
                self._check_path()
                sync_tree(part)
                replace_folder(part, path)
            finally:
                shutil.rmtree(part, ignore_errors=True)

    def _check_address(self) -> None:
        """Raise UsageError for a URL, unless it is a run's folder in an object store."""
        bucket, _, path = self.name.partition("://")[2].partition("/")
        is_folder = bucket and path.strip("/") and self.name.endswith("/")
        is_stored = is_in_object_store(self.name) and not has_credentials(self.name)
        if not (self.is_run and is_folder and is_stored):
            stored = ", or a folder in an object store: <-o s3://bucket/rows/>, gs:// or az://"
            raise UsageError(
                f"<{self.option}=> cannot write to {without_credentials(self.name)}",
                hint=f"name a file or folder on this machine{stored if self.is_run else ''}",
            )

    def _check_input(self, source: str) -> None:
        """Raise UsageError if the target is the source, under any name, or contains it."""
        if source == "-" or url_scheme(source):
            return
        path = parse_path(source)
        # a run does not read its own output
        is_pattern = has_magic(path) and not os.path.lexists(path) and not self._has_run
        for name in iglob(path, recursive=True) if is_pattern else [path]:
            self.refuse_inside(name)

    def _check_path(self) -> None:
        """Raise UsageError, OutputExists or OutputFailed for the current state of the path."""
        path, is_folder = self.path, self.kind != "file"
        try:
            exists, has_files = path.exists(), path.is_dir() and any(path.iterdir())
            is_foreign = path.is_symlink() or (has_files and not (path / MARK).is_file())
            if self.kind == "whole folder" and is_foreign:
                raise OutputExists(
                    f"{path} was not written by pgcli, so pgcli does not replace it",
                    hint=self._hint,
                )
            folder = next(filter(os.path.lexists, path.parents), path)
            if not folder.is_dir():
                raise UsageError(f"{folder} is not a folder", hint=self._hint)
            if exists and not (path.is_dir() if is_folder else path.is_file()):
                kind = "folder" if is_folder else "regular file"
                raise UsageError(f"{path} is not a {kind}", hint=self._hint)
            is_taken = has_files or (os.path.lexists(path) and not path.is_dir())
            if is_taken and not self.overwrite:
                raise OutputExists(
                    f"{path} is not empty" if is_folder else f"{path} exists",
                    hint=f"<--overwrite> replaces {'its files' if is_folder else 'it'}, or "
                    f"{self._hint}",
                )
            if self._has_run and not self.is_run:
                raise OutputExists(f"{path} is the output of a run", hint=self._hint)
            existing = path if exists else folder
            if not os.access(existing, os.W_OK | (os.X_OK if existing.is_dir() else 0)):
                raise OutputFailed(
                    f"{path} is not writable", hint=f"correct the permissions, or {self._hint}"
                )
        except OSError as problem:
            raise OutputFailed(
                f"cannot write {path}: {problem.strerror or problem}",
                hint=f"correct the path, or {self._hint}",
            ) from problem


def replace_folder(part: Path, target: Path) -> None:
    """Rename the folder, and remove the earlier export that it replaces.

    A kill between the renames leaves the earlier export under its temporary name. Raises OSError.
    """
    old = target.with_name(temporary_name(target.name, ".old"))
    is_replaced = target.is_dir() and any(target.iterdir())
    if is_replaced:
        target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        if is_replaced:
            old.rename(target)
        raise
    fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Flush all files and names of a folder to disk, without following links. Raises OSError."""
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        for parent, _, names in os.walk(folder):
            files = (Path(parent, name) for name in names)
            list(pool.map(fsync, (file for file in files if not file.is_symlink())))
            fsync(Path(parent))


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
        with suppress(OSError):
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
