"""The processes that write an output: each gives signs of life, and claims chunks of rows."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from pgcli.errors import OutputFailed, OutputInUse
from pgcli.run.state.record import now, parse_object
from pgcli.stores import Store

PROCESSES, CLAIMS = "processes/", "claims/"
BEAT_SECONDS = 10.0  # between two signs of life
#: A process of another machine that was silent for so long does not run any more.
SILENT_SECONDS = 120.0
POLL_SECONDS = 1.0  # between two looks for chunks that other processes leave
#: A chunk whose process died so often is computed row by row; such a row is an error row then.
MAX_DEATHS = 2
AHEAD = 4  # chunks that are left where a process prepares another one


@dataclass(frozen=True)
class Other:
    """Another process that writes the output, or that was killed."""

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
            if not self._is_removed:
                with suppress(OutputFailed):
                    self.write()
            with suppress(OSError):
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
        """Write the values now. Raises OutputFailed."""
        with self._lock:
            data = json.dumps(self._values).encode()
            self._store.replace(f"{PROCESSES}{self.id}.json", data)

    def remove_dead(self) -> None:
        """Remove the files of processes that have ended; this one has the output for itself."""
        dead = [other.id for other in others(self._store, self.id) if not other.is_alive]
        self._store.delete(f"{PROCESSES}{one}.json" for one in dead)

    def remove_claims(self) -> None:
        """Remove all claims of an output that is complete."""
        self._store.delete([entry.name for entry in self._store.list(CLAIMS)])

    def free_chunks(self, engine: str, reported: Container[int]) -> None:
        """Remove the claims of chunks that an engine completed and died before it reported them."""
        for entry in list(self._store.list(CLAIMS)):
            values = parse_object(self._store.read(entry.name)) or {}
            number = int(entry.name.removeprefix(CLAIMS))
            is_done = values.get("done") and values.get("process") == engine
            if is_done and number not in reported:
                self._store.delete([entry.name])

    def remove(self) -> None:
        """Remove the file of this process."""
        self._ended.set()
        self._is_removed = True
        self._store.delete([f"{PROCESSES}{self.id}.json"])

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OutputFailed):
                self.write()


def others(store: Store, own: str = "") -> list[Other]:
    """The other processes that wrote the output and left a file, in the order of their begin.

    Raises OutputFailed.
    """
    found, clock = [], time.time()
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
        found.append(Other(name, values, is_alive(values, silent), silent))
    return sorted(found, key=began_at)


def began_at(other: Other) -> float:
    """When a process began, in seconds since 1970; 0 where its file does not say."""
    began = other.values.get("began")
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
    """Whether a process holds the lock on its file; None if the file cannot be seen here."""
    try:
        descriptor = os.open(str(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
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
    """What tells this start of this machine from others; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def in_use(output: str, other: Other) -> OutputInUse:
    """The error for an output that another process writes."""
    values = other.values
    return OutputInUse(
        f"{output} is in use by process {values.get('pid')} on {values.get('host')} since "
        f"{values.get('since')}",
        hint=f"wait for it (pgcli status {shlex.quote(output)}), end it, or choose another -o",
    )


@dataclass
class Claim:
    """A chunk that this process computes: how many processes died of it, and of which row."""

    number: int
    deaths: int = 0
    row: int | None = None
    row_deaths: int = 0
    is_done: bool = False

    @property
    def is_split(self) -> bool:
        """Whether the chunk is computed row by row."""
        return self.deaths >= MAX_DEATHS


class Claims:
    """The chunks of an output, of which each process computes those that it claims first.

    `claims/N` holds the process that computes chunk N. A chunk whose process has died is free.
    Should two processes compute one chunk all the same, the first that is complete stays.
    `is_complete` says whether the rows of a chunk are there.
    """

    def __init__(
        self,
        store: Store,
        process: Process,
        numbers: Iterable[int],
        is_complete: Callable[[int], bool],
    ):
        self._store, self._process, self._is_complete = store, process, is_complete
        self._unseen = list(reversed(list(numbers)))  # the next one last
        self._taken: set[int] = set()  # by others, when they were looked at

    @property
    def has_many(self) -> bool:
        """Whether several chunks may be free, so that one can be prepared ahead."""
        return len(self._unseen) > AHEAD

    def next(self, should_stop: Callable[[], bool], *, waits: bool = True) -> Claim | None:
        """The next free chunk; None if all are complete, or with `waits` off if none is free.

        Raises OutputFailed.
        """
        while not should_stop():
            while self._unseen:
                number = self._unseen.pop()
                if self._is_complete(number):
                    continue
                if self._create(Claim(number)):
                    return Claim(number)
                self._taken.add(number)
            if not waits:
                return None
            if (claim := self._take_over()) is not None:
                return claim
            if not self._taken:
                return None
            time.sleep(POLL_SECONDS)
        return None

    def update(self, claim: Claim) -> None:
        """Write what is known of a claimed chunk. Raises OutputFailed."""
        self._store.replace(f"{CLAIMS}{claim.number}", self._content(claim))

    def release(self, number: int) -> None:
        """Remove the claim of a chunk. Raises OutputFailed."""
        self._store.delete([f"{CLAIMS}{number}"])

    def _create(self, claim: Claim) -> bool:
        name, data = f"{CLAIMS}{claim.number}", self._content(claim)
        # a store may take an object, fail, and refuse the retry
        return self._store.create(name, data) or self._store.read(name) == data

    def _take_over(self) -> Claim | None:
        """A chunk whose process has died or has left it."""
        claims = {
            number: parse_object(self._store.read(f"{CLAIMS}{number}"))
            for number in sorted(self._taken)
        }
        # after the claims were read: each process is registered before it claims
        alive = {other.id for other in others(self._store, self._process.id) if other.is_alive}
        for number, values in claims.items():
            if self._is_done(values) or self._is_complete(number):
                self._taken.discard(number)
            elif values is None or values.get("process") not in alive:
                claim = Claim(number) if values is None else inherited(number, values)
                self._store.delete([f"{CLAIMS}{number}"])
                if self._create(claim):
                    self._taken.discard(number)
                    return claim
        return None

    def _is_done(self, values: Mapping[str, Any] | None) -> bool:
        """Whether another engine of the same command has computed the chunk.

        The open file of an engine that outlived its command is found by a later command.
        """
        is_done = values is not None and values.get("done")
        return bool(is_done and values and values.get("run") == self._process.values.get("run"))

    def _content(self, claim: Claim) -> bytes:
        values = {
            "process": self._process.id,
            "run": self._process.values.get("run"),
            "deaths": claim.deaths,
            "row": claim.row,
            "row_deaths": claim.row_deaths,
            "done": claim.is_done,
        }
        return json.dumps(values).encode()


def inherited(number: int, values: Mapping[str, Any]) -> Claim:
    """The claim of a chunk whose process has died."""
    if values.get("done"):
        return Claim(number)  # for an earlier command
    deaths, row = values.get("deaths"), values.get("row")
    row_deaths = values.get("row_deaths")
    return Claim(
        number,
        (deaths if isinstance(deaths, int) else 0) + 1,
        row if isinstance(row, int) else None,
        (row_deaths if isinstance(row_deaths, int) else 0) + isinstance(row, int),
    )
