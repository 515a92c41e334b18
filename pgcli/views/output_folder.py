"""Files written below a folder, each whole or not at all, and never anywhere else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pgcli.errors import OutputFailed

_LED_ASTRAY = {errno.ELOOP, errno.ENOTDIR}


DRAW_HINT = "make room or mend the place, or choose another folder with --draw"


def write_below(folder: str, name: str, data: bytes, *, token: str, hint: str = DRAW_HINT) -> None:
    """Write `folder/name`, replacing what is there; `name` is a relative path with slashes.

    Folders are made on the way; a link is replaced, not followed, but for `folder` itself. A killed
    process leaves at most a hidden file named after the `token`, which the next one with the same
    token replaces. Raises OutputFailed, with the `hint`.
    """
    *parents, last = name.split("/")
    if {"", ".", ".."} & {*parents, last}:
        raise AssertionError(f"{name!r} is no path below a folder")
    path = os.path.join(folder, name)  # noqa: PTH118
    with _failures_named(path, hint), _opened(folder, parents) as place:
        part = f".pgcli-{token}.part"
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=place)
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=place)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(part, last, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=place)
            raise


@contextmanager
def _opened(folder: str, parents: Sequence[str]) -> Iterator[int]:
    """A descriptor of the folder that the parents lead to, each looked up in the one before."""
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
def _failures_named(path: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        if problem.errno in _LED_ASTRAY:
            reason = "a link or a file stands where a folder is needed"
        raise cannot_draw(path, reason, hint) from problem


def cannot_draw(path: str, reason: str, hint: str = DRAW_HINT) -> OutputFailed:
    """The report of a picture that could not be written, and what may mend it."""
    return OutputFailed(f"cannot write {path}: {reason}", hint=hint)
