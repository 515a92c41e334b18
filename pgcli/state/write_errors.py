"""Errors of the operating system while an output is written, as messages with a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed


@contextmanager
def wrap_write_errors(name: Path | str) -> Iterator[None]:
    """A block that writes `name`; raises OutputFailed or OutputExists in place of an OSError.

    BrokenPipeError is not wrapped: the reader of a pipe has closed it, which is not a failure.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except FileExistsError as problem:
        raise already_exists(name) from problem
    except OSError as problem:
        raise OutputFailed(
            f"cannot write {name}: {problem.strerror or problem}",
            hint="free some space or correct the path, then run the same command again; or choose "
            "another -o",
        ) from problem


def already_exists(name: Path | str, detail: str = "", *, option: str = "-o") -> OutputExists:
    """The error for a file that must not be replaced; `detail` continues the message."""
    return OutputExists(
        f"{name} exists{detail}",
        hint=f"--overwrite replaces it; another {option} leaves it alone",
    )


def fsync(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close a file descriptor, also when a signal interrupts the call.

    Linux has closed the file then. Python retries every other interrupted call itself.
    """
    with suppress(InterruptedError):
        os.close(descriptor)


def is_named(descriptor: int, path: Path) -> bool:
    """Whether the path leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def make_folder(path: Path) -> None:
    """Create the folder if it does not exist, durably. Raises OSError."""
    path.mkdir(exist_ok=True)
    fsync(path.parent)
