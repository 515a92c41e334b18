"""Writes files and folders that appear as a whole, only where nothing foreign is replaced."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.stores import writing
from pgcli.stores.writing import (
    fsync,
    give_name,
    make_folder,
    published,
    temporary_name,
    wrap_write_errors,
)

#: A file in every folder that an export wrote; other folders are never replaced.
MARK = ".pgcli-export"
SYNC_THREADS = 16  # file systems write the journal once for several files that are synced together
DRAW_HINT = "free disk space, check the folder's permissions, or choose another with --draw"
_NOT_A_FOLDER = {errno.ELOOP, errno.ENOTDIR}


def check_target(target: Path, *, is_folder: bool, overwrite: bool, option: str = "-o") -> None:
    """Check a file or folder that is written as a whole. Raises what `writing.check_target` does.

    A folder is replaced only if an export wrote it.
    """
    is_link = is_folder and target.is_symlink()
    if is_folder and os.path.lexists(target) and (is_link or is_foreign_folder(target)):
        raise OutputExists(
            f"{target} was not written by an export, and is not replaced",
            hint=f"name another folder with {option}",
        )
    writing.check_target(target, option, is_folder=is_folder, overwrite=overwrite)


def is_foreign_folder(folder: Path) -> bool:
    """Whether the folder has files, and no export wrote it."""
    try:
        return any(folder.iterdir()) and not (folder / MARK).is_file()
    except OSError:  # it is not a folder, or cannot be read
        return False


def check_folder(folder: str, option: str, *, overwrite: bool) -> None:
    """Check the folder of an option, into which files are written; it may be a link to a folder.

    Raises what `writing.check_target` raises.
    """
    if not folder:
        raise UsageError(f"there is no folder {folder!r}", hint=f"name a folder with {option}")
    path = Path(folder)
    path = path.resolve() if path.is_symlink() and path.is_dir() else path
    writing.check_target(path, option, is_folder=True, overwrite=overwrite)


@contextmanager
def publish(target: Path, *, is_folder: bool, overwrite: bool) -> Iterator[Path]:
    """A temporary path that becomes the target if the block succeeds, and is removed if not.

    Raises OutputExists where the target has been written meanwhile, and OutputFailed.
    """
    if not is_folder:
        with published(target, replace=overwrite) as part:
            yield part
            check_target(target, is_folder=False, overwrite=overwrite)
        return
    part = target.with_name(temporary_name(target.name))
    with wrap_write_errors(target):
        try:
            make_folder(part)
            (part / MARK).write_text("made by pgcli export\n", encoding="utf-8")
            yield part
            check_target(target, is_folder=True, overwrite=overwrite)
            sync_tree(part)
            replace_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def replace_folder(part: Path, target: Path) -> None:
    """Rename the folder, and remove the earlier export that it replaces.

    The earlier export is put back where the folder cannot be renamed. Raises OSError.
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
    """Flush all files and names of a folder to disk, except what links lead to. Raises OSError."""
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        for parent, _, names in os.walk(folder):
            files = (Path(parent, name) for name in names)
            list(pool.map(fsync, (file for file in files if not file.is_symlink())))
            fsync(Path(parent))


def write_below(
    folder: str,
    name: str,
    data: bytes,
    *,
    token: str,
    hint: str = DRAW_HINT,
    replace: bool = True,
) -> bool:
    """Write `folder/name`, replacing an existing file; `name` is a relative path with slashes.

    Without `replace` an existing file is kept, and False returned.

    Missing folders are created. A link is replaced, not followed, except for `folder` itself. A
    killed process leaves at most a hidden file named after the `token`, which the next process with
    the same token replaces. Raises OutputFailed with the `hint`.
    """
    *parents, last = name.split("/")
    if {"", ".", ".."} & {*parents, last}:
        raise AssertionError(f"{name!r} is not a path below a folder")
    path = os.path.join(folder, name)  # noqa: PTH118
    with _output_errors(path, hint), _opened(folder, parents) as parent:
        part = f".pgcli-{token}.part"
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=parent)
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=parent)
            with open(descriptor, "wb") as file:
                file.write(data)
            return give_name(part, last, parent, replace=replace)
        finally:
            with suppress(OSError):
                os.unlink(part, dir_fd=parent)


@contextmanager
def _opened(folder: str, parents: Sequence[str]) -> Iterator[int]:
    """A descriptor of the folder below the parents, each opened relative to the one before."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for parent in parents:
            with suppress(FileExistsError):
                os.mkdir(parent, dir_fd=descriptor)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            below = os.open(parent, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _output_errors(path: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        if problem.errno in _NOT_A_FOLDER:
            reason = "a folder in the path is a link or a file"
        raise draw_error(path, reason, hint) from problem


def draw_error(path: str, reason: str, hint: str = DRAW_HINT) -> OutputFailed:
    """The error for an image that could not be written."""
    return OutputFailed(f"cannot write {path}: {reason}", hint=hint)
