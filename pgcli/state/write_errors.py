"""What can go wrong when an output is written, turned into messages with a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed


@contextmanager
def writing(name: Path | str) -> Iterator[None]:
    """A block that writes `name`: OutputFailed where the system refuses.

    A pipe whose reader has gone is no failure of ours and rises as BrokenPipeError.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except FileExistsError as problem:
        raise exists(name) from problem
    except OSError as problem:
        raise OutputFailed(
            f"cannot write {name}: {problem.strerror or problem}",
            hint="make room or mend the place, then the same command again; or choose another -o",
        ) from problem


def exists(name: Path | str, why: str = "") -> OutputExists:
    """The refusal to write over what is there; `why` is what is odd about it."""
    return OutputExists(
        f"{name} exists{why}", hint="--overwrite replaces it; another -o leaves it alone"
    )


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close a file, though a signal come amid it: the system has closed it all the same.

    Python begins every other call anew that a signal broke off.
    """
    with suppress(InterruptedError):
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make the folder if it is not there, to outlast a power cut. Raises OSError."""
    path.mkdir(exist_ok=True)
    sync(path.parent)
