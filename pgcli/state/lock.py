"""The locks of an output, and a record of the process that holds each of them.

A run that writes the whole output locks it exclusively. A shard shares that lock with other shards,
and locks its own part of the state exclusively. A part that replaces the output shares the lock
once the earlier rows are gone.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pgcli.errors import OutputInUse
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.file_lock import Held, file_lock, is_locked, remove_unlocked
from pgcli.state.state_folder import LOCK, OWNER
from pgcli.state.write_errors import wrap_write_errors

#: Covers the moment in which another process looks whether the lock is held.
TIMEOUT_SECONDS = 0.1
REFRESH_SECONDS = 30.0  # between two signs of life of a run


@contextmanager
def output_lock(
    folder: Path, *, part: str = "", replaces: bool = False
) -> Iterator[Callable[[], None]]:
    """A block in which no other process writes this output, or this part of it.

    With `replaces` no other part is written either, until what is yielded is called. The system
    releases the locks of a killed process. Raises OutputFailed, and OutputInUse with the owner's
    process, host and start.
    """
    owner = folder / f"{OWNER}{part}.json"
    share: list[Callable[[], None]] = []

    def share_output() -> None:
        with wrap_in_use(folder, part):
            share[0]()

    with ExitStack() as locks:
        for name, is_shared in lock_names(part, replaces=replaces).items():
            lock = file_lock(folder / name, shared=is_shared, timeout_seconds=TIMEOUT_SECONDS)
            with wrap_in_use(folder, part):
                share.append(locks.enter_context(lock))
        try:
            write_json(owner, current_process(), durable=False)
            with refreshed(owner):
                yield share_output
        finally:  # while the lock is held: afterwards the record is the next owner's
            with suppress(OSError):
                owner.unlink(missing_ok=True)


def check_unlocked(folder: Path, *, part: str = "", replaces: bool = False) -> None:
    """Raise OutputInUse if another process writes the output. Creates nothing."""
    for name, is_shared in lock_names(part, replaces=replaces).items():
        if is_locked(folder / name, shared=is_shared):
            raise in_use(folder, part)


@contextmanager
def wrap_in_use(folder: Path, part: str) -> Iterator[None]:
    """A block that raises OutputInUse for a lock that is held, and OutputFailed."""
    with wrap_write_errors(folder):
        try:
            yield
        except Held:
            raise in_use(folder, part) from None


def remove_locks(folder: Path, *names: str, part: str = "") -> None:
    """Remove the files of the output's locks, and of those named, that no process holds."""
    for name in (*lock_names(part), *names):
        with suppress(OSError):
            remove_unlocked(folder / name)


def lock_names(part: str, *, replaces: bool = False) -> Mapping[str, bool]:
    """The files that a run locks, in order, and whether each of them is shared."""
    return {LOCK: not replaces, f"{LOCK}{part}": False} if part else {LOCK: False}


@contextmanager
def refreshed(file: Path) -> Iterator[None]:
    """A block that renews the mtime of the file: other hosts see that this process lives."""
    ended = Event()

    def refresh() -> None:
        while not ended.wait(REFRESH_SECONDS):
            with suppress(OSError):
                os.utime(file)

    thread = Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def current_process() -> dict[str, Any]:
    """What the owner file records of this process."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def in_use(folder: Path, part: str) -> OutputInUse:
    """The error for an output that another process writes."""
    output, by = folder.with_suffix(""), "another run"
    # the run of this part or of the whole output, or any shard
    files = [folder / f"{OWNER}{part}.json", folder / f"{OWNER}.json"]
    files += sorted(folder.glob(f"{OWNER}-*.json"))
    if owner := next(filter(None, map(read_json, files)), None):
        by = f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"
    return OutputInUse(
        f"{output} is in use by {by}",
        hint=f"wait for it (pgcli status {shlex.quote(str(output))}), end it, or choose another -o",
    )
