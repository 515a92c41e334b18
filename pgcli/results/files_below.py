"""Writes files below a folder that others may write to: no link in it is followed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pgcli.errors import OutputFailed
from pgcli.stores.writing import give_name

DRAW_HINT = "free disk space, check the folder's permissions, or choose another with --draw"
_NOT_A_FOLDER = {errno.ELOOP, errno.ENOTDIR}


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
