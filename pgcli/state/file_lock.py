"""Locks on files, shared or exclusive, which the system frees when a process is killed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from pgcli.state.write_errors import is_named

POLL_SECONDS = 0.02
#: What a file system without locks answers; there several runs may write one output.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)
FLAGS = os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO of the name does not hold up the run
HELD = (errno.EAGAIN, errno.EACCES)


class Held(Exception):
    """Another process, or another part of this one, holds the lock."""


@contextmanager
def file_lock(
    file: Path, *, shared: bool = False, timeout_seconds: float = float("inf")
) -> Iterator[Callable[[], None]]:
    """A block in which the file is locked; the file and its folder are created.

    A shared lock excludes exclusive ones only; calling what is yielded makes an exclusive lock
    shared, or raises Held. The filelock package has shared locks in SQLite alone, which does not
    work on network file systems. Raises Held and OSError.
    """
    descriptor = acquire(file, shared=shared, timeout_seconds=timeout_seconds)

    def share() -> None:
        if locks(descriptor, shared=True) is False:  # another process was faster
            raise Held

    try:
        yield share
    finally:
        release(descriptor)


def acquire(file: Path, *, shared: bool, timeout_seconds: float) -> int:
    """The descriptor of the locked file. Raises Held and OSError."""
    deadline = monotonic() + timeout_seconds
    while True:
        file.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # a run that saved nothing removed the folder meanwhile
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | FLAGS, 0o666)
            try:
                is_held_elsewhere = locks(descriptor, shared=shared) is False
                if not is_held_elsewhere and is_named(descriptor, file):
                    return descriptor
            except BaseException:
                release(descriptor)
                raise
            release(descriptor)
        if monotonic() >= deadline:
            raise Held
        sleep(POLL_SECONDS)


def release(descriptor: int) -> None:
    """Unlock and close the file."""
    with suppress(OSError):  # closing it unlocks it too, unless a forked process has it open
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with suppress(OSError):  # nothing was written to it
        os.close(descriptor)


def locks(descriptor: int, *, shared: bool) -> bool | None:
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


def is_locked(file: Path, *, shared: bool = True) -> bool | None:
    """Whether a lock, `shared` or not, could not be had now; None if that cannot be known.

    Creates nothing.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        is_free = locks(descriptor, shared=shared)
    except OSError:
        return None
    finally:
        release(descriptor)
    return None if is_free is None else not is_free


def remove_unlocked(file: Path) -> None:
    """Remove a lock's file unless it is held. Whoever waits for it notices. Raises OSError."""
    if file.exists():
        with suppress(Held), file_lock(file, timeout_seconds=0):
            file.unlink()
