"""One run at a time on an output; who it is, for the others to read."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pgcli.errors import OutputInUse
from pgcli.state.atomic_file import got, put
from pgcli.state.write_errors import writing

LOCK, OWNER = "lock", "owner"


@contextmanager
def only_run(folder: Path, *, part: str = "") -> Iterator[None]:
    """The block in which no other process writes this output, or this part of it.

    The system frees the lock of a process that was killed. Raises OutputInUse, which names the
    other run, and OutputFailed.
    """
    # no singleton: two runs in one process exclude each other as well
    lock = FileLock(folder / f"{LOCK}{part}", is_singleton=False, thread_local=False)
    owner = folder / f"{OWNER}{part}.json"
    with writing(folder):
        try:
            lock.acquire(blocking=False)
            while not is_there(lock):  # whoever held it removed it before it let go
                lock.release()
                lock.acquire(blocking=False)
        except Timeout:
            raise in_use(folder, got(owner) or {}) from None
    try:
        put(owner, ourselves(), lasting=False)
        yield
    finally:
        with suppress(OSError):
            owner.unlink(missing_ok=True)
        lock.release()


def is_there(lock: FileLock) -> bool:
    """Whether the file that is locked is the one that others find under its name."""
    descriptor = lock._context.lock_file_fd  # for which the library has no public name
    assert descriptor is not None
    mine = os.fstat(descriptor)
    try:
        found = Path(lock.lock_file).stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def ourselves() -> dict[str, Any]:
    """This process, for whoever finds the output in use."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def is_alive(owner: Mapping[str, Any]) -> bool:
    """Whether the process is there, as far as can be told: of another host's nothing can."""
    if owner.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(owner["pid"]), 0)
    except PermissionError:
        return True
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return True


def in_use(folder: Path, owner: Mapping[str, Any]) -> OutputInUse:
    output = folder.with_suffix("")
    by = "another run"
    if owner:
        by = f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"
    return OutputInUse(
        f"{output} is in use by {by}",
        hint=f"wait for it (pgcli status {shlex.quote(str(output))}), end it, or choose another -o",
    )
