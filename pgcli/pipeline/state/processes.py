"""The processes that write an output: each gives signs of life."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from pgcli.errors import OutputFailed, OutputInUse
from pgcli.pipeline.state.record import now, parse_object
from pgcli.stores import Store

PROCESSES = "processes/"
BEAT_SECONDS = 10.0  # between two signs of life
#: A process of another machine that was silent for so long does not run any more.
SILENT_SECONDS = 120.0


@dataclass(frozen=True)
class RecordedProcess:
    """A process that writes the output, or that was killed, as its file describes it."""

    id: str
    values: Mapping[str, Any]
    is_alive: bool
    silent_seconds: float


class Process:
    """This process among those that write an output, within the `with` block.

    `processes/ID.json` holds its number, machine and counts, written anew every BEAT_SECONDS; the
    last one is written when the block is left. A file in the machine's temporary folder is locked
    as long as the process lives, whatever its number: processes of the same machine see at once
    that another has died, also in containers that share the folder.
    """

    def __init__(self, store: Store, mode: str, values: Mapping[str, Any] | None = None):
        self.id = token_hex(6)
        self._store, self._lock = store, threading.Lock()
        self._ended = threading.Event()
        self._lock_file = lock_folder() / self.id
        self._values: dict[str, Any] = {
            "id": self.id,
            "mode": mode,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "lock": str(self._lock_file),
            "since": now(),
            "began": time.time(),
            "exit_code": None,
            **(values or {}),
        }

    _is_removed = False

    @contextmanager
    def registered(self) -> Iterator[Process]:
        """A block in which this process gives signs of life. Raises OutputFailed."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # without locks, others go by the signs of life
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        beat = threading.Thread(target=self._beat, daemon=True)
        try:
            self.write()
            beat.start()
            yield self
        finally:
            self._ended.set()
            if beat.ident is not None:
                beat.join()
            self._write_last()
            if self._is_removed or self._values["exit_code"] is not None:
                with suppress(OSError):  # the file of one that says neither shows that it ended
                    self._lock_file.unlink()
            os.close(descriptor)

    @property
    def values(self) -> Mapping[str, Any]:
        """What the file says with the next sign of life."""
        return self._values

    def note(self, **values: Any) -> None:
        """Change values, which are written with the next sign of life."""
        with self._lock:
            self._values |= values

    def write(self) -> None:
        """Write the values now, unless the file is removed. Raises OutputFailed."""
        with self._lock:
            if self._is_removed:
                return
            data = json.dumps(self._values).encode()
            self._store.replace(f"{PROCESSES}{self.id}.json", data)

    def _write_last(self) -> None:
        """Write the values once more; on a full disk the file before makes room for them."""
        try:
            self.write()
        except OutputFailed:
            with suppress(OutputFailed):
                self._store.delete([f"{PROCESSES}{self.id}.json"])
                self.write()

    def remove_dead(self) -> None:
        """Remove the files of processes that have ended; this one has the output for itself."""
        dead = [p.id for p in recorded_processes(self._store, self.id) if not p.is_alive]
        self._store.delete(f"{PROCESSES}{process_id}.json" for process_id in dead)

    def remove(self) -> None:
        """Remove the file of this process, while it holds its lock."""
        with self._lock:
            self._is_removed = True
            self._store.delete([f"{PROCESSES}{self.id}.json"])

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OutputFailed):
                self.write()


def recorded_processes(store: Store, own: str = "") -> list[RecordedProcess]:
    """The processes that wrote the output and left a file, in the order of their begin.

    The one whose id is `own` is left out. Raises OutputFailed.
    """
    processes, clock = [], time.time()
    entries = list(store.list(PROCESSES))
    for entry in entries:
        if entry.name == f"{PROCESSES}{own}.json":
            clock = max(clock, entry.modified) if "://" not in store.url else entry.modified
    for entry in entries:
        values = parse_object(store.read(entry.name))
        name = entry.name.removeprefix(PROCESSES).removesuffix(".json")
        if values is None or name == own:
            continue
        silent = max(0.0, clock - entry.modified)
        processes.append(RecordedProcess(name, values, is_alive(values, silent), silent))
    return sorted(processes, key=began_at)


def living(store: Store, own: str = "") -> set[str]:
    """The ids of the other processes that run. Raises OutputFailed."""
    return {process.id for process in recorded_processes(store, own) if process.is_alive}


def began_at(process: RecordedProcess) -> float:
    """When a process began, in seconds since 1970; 0 where its file does not say."""
    began = process.values.get("began")
    return began if isinstance(began, float) else 0.0


def is_alive(values: Mapping[str, Any], silent_seconds: float) -> bool:
    """Whether a process runs: by its lock on the same machine, else by its last sign of life."""
    if values.get("exit_code") is not None:
        return False
    if (
        values.get("boot") == boot_id()
        and (is_locked := holds_lock(values.get("lock"))) is not None
    ):
        return is_locked
    return silent_seconds < SILENT_SECONDS


def holds_lock(file: object) -> bool | None:
    """Whether a process holds the lock on its file; None if that cannot be seen here."""
    try:
        descriptor = os.open(str(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        return None
    finally:
        os.close(descriptor)
    return False


def lock_folder() -> Path:
    """The folder of this user's locks on this machine."""
    folder = Path(tempfile.gettempdir(), f"pgcli-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        folder = Path(tempfile.mkdtemp(prefix="pgcli-"))
    return folder


def boot_id() -> str:
    """The id of this start of this machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def in_use(output: str, process: RecordedProcess) -> OutputInUse:
    """The error for an output that another process writes."""
    values = process.values
    return OutputInUse(
        f"{output} is in use by process {values.get('pid')} on {values.get('host')} since "
        f"{values.get('since')}",
        hint=f"wait for it (pgcli status {shlex.quote(output)}), end it, or choose another -o",
    )
