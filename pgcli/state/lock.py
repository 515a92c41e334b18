"""The lock that allows one process at a time to write an output, and a note on its owner."""

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
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.state_folder import LOCK, OWNER
from pgcli.state.write_errors import wrap_write_errors

#: Covers the retry after the previous owner removed the lock file while releasing it.
TIMEOUT_SECONDS = 0.1


@contextmanager
def output_lock(folder: Path, *, part: str = "") -> Iterator[None]:
    """A block in which no other process writes this output, or this part of it.

    The system releases the lock of a killed process. Raises OutputFailed, and OutputInUse with the
    owner's process, host and start.
    """
    owner = folder / f"{OWNER}{part}.json"
    lock = acquire(folder, part)
    try:
        write_json(owner, current_process(), durable=False)
        yield
    finally:
        with suppress(OSError):
            owner.unlink(missing_ok=True)
        lock.release()


def check_unlocked(folder: Path, *, part: str = "") -> None:
    """Raise OutputInUse if another process writes the output. Creates nothing."""
    owner = read_json(folder / f"{OWNER}{part}.json")
    if owner is not None and is_alive(owner) and (folder / f"{LOCK}{part}").exists():
        acquire(folder, part).release()


def acquire(folder: Path, part: str) -> FileLock:
    """The lock, acquired. Raises OutputInUse and OutputFailed."""
    # not a singleton: two runs in one process exclude each other too
    lock = FileLock(folder / f"{LOCK}{part}", is_singleton=False, thread_local=False)
    with wrap_write_errors(folder):
        try:
            lock.acquire(timeout=TIMEOUT_SECONDS, poll_interval=TIMEOUT_SECONDS / 5)
        except Timeout:
            raise in_use(folder, read_json(folder / f"{OWNER}{part}.json") or {}) from None
    return lock


def current_process() -> dict[str, Any]:
    """What the owner file records of this process."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def is_alive(owner: Mapping[str, Any]) -> bool:
    """Whether the process may be running: true for any process of another host."""
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
    """The error for an output that another process writes."""
    output = folder.with_suffix("")
    by = "another run"
    if owner:
        by = f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"
    return OutputInUse(
        f"{output} is in use by {by}",
        hint=f"wait for it (pgcli status {shlex.quote(str(output))}), end it, or choose another -o",
    )
