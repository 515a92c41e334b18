"""The processes that write an output, and those that ended without a word."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.state.atomic_file import read_json
from pgcli.state.file_lock import is_locked
from pgcli.state.progress import modified_at, progress_file
from pgcli.state.state_folder import CLAIMING_PART, LOCK, OWNER

#: A process of another host that gave no sign of life for so long does not run any more.
SILENT_SECONDS = 600.0


@dataclass(frozen=True)
class Owner:
    """A process that took the lock of a part of an output, and whether it still runs."""

    part: str
    process: dict[str, Any]
    is_running: bool
    silent_seconds: float


def owners(folder: Path) -> Iterator[Owner]:
    """The processes that took a lock and did not release it."""
    files = folder.glob(f"{OWNER}*.json") if os.path.isdir(folder) else ()  # noqa: PTH112 - no error
    for file in sorted(files):
        process, part = read_json(file) or {}, file.stem.removeprefix(OWNER)
        silent = seconds_since(file, progress_file(folder, part))
        is_held = is_locked(folder / f"{LOCK}{part}")
        if process.get("host") != socket.gethostname():
            is_held = None  # it may not be seen here, or outlive its host on a file server
        is_running = silent < SILENT_SECONDS if is_held is None else is_held
        yield Owner(part, process, is_running, silent)


def remove_killed(folder: Path) -> None:
    """Remove what processes left that claimed chunks and were killed."""
    for owner in owners(folder):
        if not owner.is_running and CLAIMING_PART.fullmatch(owner.part):
            for file in folder.glob(f"*{owner.part}*"):
                with suppress(OSError):
                    file.unlink()


def seconds_since(*files: Path) -> float:
    """The seconds since one of the files was written."""
    return max(0.0, time.time() - max(map(modified_at, files)))
