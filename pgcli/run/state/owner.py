"""The command that owns an output: it holds a lock on this machine, or a lease in a store."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any

from pgcli.errors import OutputFailed, OutputInUse
from pgcli.run.state.record import now
from pgcli.stores import Held, LocalStore, Store, Version, open_folder
from pgcli.stores.writing import temporary_name
from pgcli.text import json_object, shown

OWNER, LOCK = "owner.json", "lock"
SHARD = re.compile("shard-[0-9]+-of-[0-9]+")
#: Long enough for a process that tests the lock, and for a killed command to end on a busy machine.
LOCK_SECONDS = 3.0
BEAT_SECONDS = 10.0  # between two heartbeats
SILENT_SECONDS = 120.0  # an owner without a heartbeat for so long counts as dead
WATCH_SECONDS = 1.0  # between two checks of an owner that may be dead
THREADS = 32  # for reading the files of shards

Values = Mapping[str, Any]


@dataclass(frozen=True)
class RecordedOwner:
    """The command that owns an output or owned it last, by its `owner.json`.

    `values` are untrusted. `shard` is `I/N`, or empty.
    """

    values: Values
    is_running: bool
    silent_seconds: float
    shard: str


class Owner:
    """This command as the owner of an output or of a shard, within the `holding` block.

    `owner.json` names the owner and its progress. The owner writes it every BEAT_SECONDS, with an
    `exit_code` of null until the block ends. On this machine, locks exclude other commands. In a
    store `owner.json` is the lease: a command may take it once its owner has ended or has been
    silent for SILENT_SECONDS.
    """

    def __init__(self, store: Store, name: str, *, shard: str = ""):
        self.name, self.shard = name, shard
        self._state, self._file = store, f"{shard_folder(shard)}{OWNER}"
        self._id, self._beats = token_hex(6), 0
        self._values: dict[str, Any] = {"started": now(), "shard": shard or None}
        self._exit_code: int | None = None
        self._before: Version | None = None
        self._thief: Values | None = None
        self._is_restored = False
        self._lock, self._ended = threading.Lock(), threading.Event()

    @cached_property
    def store(self) -> Store:
        """The folder of the owner's files: the state folder, or the shard's folder in it."""
        folder = shard_folder(self.shard)
        url = f"{self._state.url.rstrip('/')}/{folder}"
        return open_folder(url, create=True) if folder else self._state

    @contextmanager
    def holding(self, *, say: Callable[[str], object]) -> Iterator[None]:
        """A block in which this command owns the output. Raises OutputInUse and OutputFailed.

        It waits for an owner that may be dead, and says so. Shards run at the same time, but not
        together with a command without --shard.
        """
        with ExitStack() as locks:
            if isinstance(self._state, LocalStore):
                self._lock_files(self._state, locks)
            beat = threading.Thread(target=self._beat, daemon=True)
            is_owner = False
            try:
                self._take(say)
                beat.start()
                # after taking the own lease, so that one of two commands sees the other
                others = [OWNER] if self.shard else shard_files(self._state)
                for file, version in read_all(self._state, others):
                    self._wait_for(file, version, say)
                is_owner = True
                yield
            finally:
                self._ended.set()
                if beat.ident is not None:
                    beat.join()
                self._write_last() if is_owner else self.restore()

    def note(self, **values: Any) -> None:
        """Set values for the next heartbeat; the `exit_code` is written when the block ends."""
        self._values = self._values | values  # a new dict, as a heartbeat may be writing the old

    def write(self) -> None:
        """Write `owner.json` now. Raises OutputFailed, and OutputInUse as `check` does."""
        with self._lock:
            self.check()
            if self._is_restored:
                return
            current = self._state.version(self._file)
            values = {"id": self._id} if current is None else parse(current)
            if values.get("id") != self._id:
                self._thief = values
                self.check()
            # the swap fails if another command takes the lease now; the next heartbeat sees that
            self._state.swap(self._file, self._to_bytes(), current)

    def check(self) -> None:
        """Raise OutputInUse if the last heartbeat found that another command took the lease."""
        if self._thief is not None:
            raise OutputInUse(
                f"{self.name} was taken over by {describe(self._thief)}, as this command was "
                f"silent for {SILENT_SECONDS:.0f} s or longer",
                hint="wait for it, then run the same command again",
            )

    def restore(self) -> None:
        """Restore the earlier `owner.json`, after this command was refused and did nothing.

        Later writes do nothing. A failure to restore it is ignored.
        """
        with self._lock, suppress(OutputFailed):
            self._is_restored = True
            current = self._state.version(self._file)
            if current is None or parse(current).get("id") != self._id:
                return
            if self._before is None:
                return self._state.delete([self._file])
            data = self._before.data
            previous = parse(self._before)
            if may_run(previous):  # a dead owner must not look as if it wrote a heartbeat
                data = json.dumps({**previous, "is_dead": True}).encode()
            self._state.swap(self._file, data, current)

    def _to_bytes(self) -> bytes:
        self._beats += 1  # so that each heartbeat changes the file
        host = {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot_id()}
        own = {"id": self._id, "beats": self._beats, **host, "exit_code": self._exit_code}
        return json.dumps({**self._values, **own}, default=str).encode()

    def _lock_files(self, store: LocalStore, locks: ExitStack) -> None:
        files = {LOCK: bool(self.shard), f"{shard_folder(self.shard)}{LOCK}": False}
        for file, shared in files.items():
            lock = store.lock(file, shared=shared, timeout_seconds=LOCK_SECONDS)
            try:
                locks.enter_context(lock)
            except Held:
                running = [owner for owner in owners(store) if owner.is_running]
                if self.shard:  # other shards exclude it from nothing
                    running = [owner for owner in running if owner.shard in ("", self.shard)]
                raise in_use(self.name, running[0].values if running else None) from None

    def _take(self, say: Callable[[str], object]) -> None:
        """Replace the `owner.json` of a command that has ended."""
        version = self._state.version(self._file)
        while True:
            version = self._before = self._wait_for(self._file, version, say)
            if self._state.swap(self._file, self._to_bytes(), version):
                return
            version = self._state.version(self._file)
            if version is not None and parse(version).get("id") == self._id:
                return  # the store wrote it but failed to answer, and refused the retry
            if version is not None and self._may_own(self._file, version):
                raise in_use(self.name, parse(version))

    def _wait_for(
        self, file: str, first: Version | None, say: Callable[[str], object]
    ) -> Version | None:
        """Wait until the owner has ended or is dead. Raises OutputInUse if it runs.

        An owner that changes the file runs. Only the time without a change counts, as the clocks of
        two machines may differ.
        """
        if first is None or not self._may_own(file, first):
            return first
        version: Version | None = first
        silent = silent_seconds(self._state, first)
        end = time.monotonic() + SILENT_SECONDS - silent
        if silent < SILENT_SECONDS:
            owner = describe(parse(first))
            say(f"waiting for the lease of {owner}, last written {silent:.0f} s ago")
        while (seconds := end - time.monotonic()) > 0:
            time.sleep(min(WATCH_SECONDS, seconds))
            version = self._state.version(file)
            if version is None or not self._may_own(file, version):
                return version
            if version.data != first.data:
                raise in_use(self.name, parse(version))
        return version

    def _may_own(self, file: str, version: Version) -> bool:
        """Whether the owner in the file may run: by its lock if possible, else by its values."""
        values = parse(version)
        is_locked = holds_lock(self._state, file, values)
        return may_run(values) and (is_locked is None or (is_locked and file != self._file))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OutputFailed, OutputInUse):
                self.write()

    def _write_last(self) -> None:
        """Write the values with the exit code; on a full disk, the old file is deleted first."""
        code = self._values.get("exit_code")
        self._exit_code = 1 if code is None else code
        with suppress(OutputFailed, OutputInUse):
            try:
                self.write()
            except OutputFailed:
                if isinstance(self._state, LocalStore):
                    self._state.delete([self._file])
                    self.write()


def owners(store: Store) -> list[RecordedOwner]:
    """The owners of the output and of each shard. Raises OutputFailed and OutputExists."""
    recorded = []
    for file, version in read_all(store, [OWNER, *shard_files(store)]):
        if version is not None and (values := parse(version)):
            silent = max(0.0, time.time() - version.modified)
            is_locked = holds_lock(store, file, values)
            is_heard = silent < SILENT_SECONDS if is_locked is None else is_locked
            shard = "/".join(re.findall("[0-9]+", file))
            recorded.append(RecordedOwner(values, may_run(values) and is_heard, silent, shard))
    return recorded


def read_all(store: Store, files: Sequence[str]) -> list[tuple[str, Version | None]]:
    """Each file with its current version; there may be thousands of shards."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(zip(files, pool.map(store.version, files), strict=True))


def shard_folder(shard: str) -> str:
    """The folder of a shard in the state folder, with a `/`; empty for no shard."""
    return f"shard-{shard.replace('/', '-of-')}/" if shard else ""


def shard_files(store: Store) -> list[str]:
    """The names that `owner.json` has in the folders of shards."""
    return [f"{folder}/{OWNER}" for folder in store.folders() if SHARD.fullmatch(folder)]


def may_run(values: Values) -> bool:
    """Whether the owner has neither ended nor been marked as dead."""
    return bool(values) and values.get("exit_code") is None and not values.get("is_dead")


def holds_lock(store: Store, file: str, values: Values) -> bool | None:
    """Whether an owner holds its lock; None if only its heartbeats show whether it runs."""
    if not isinstance(store, LocalStore) or values.get("boot") != boot_id():
        return None
    return store.is_locked(f"{file.removesuffix(OWNER)}{LOCK}")


def silent_seconds(store: Store, version: Version) -> float:
    """The age of a version by the clock of the store, measured with a new file."""
    file = temporary_name("clock")
    store.replace(file, b"")
    try:
        written = store.version(file)
    finally:
        store.delete([file])
    return 0.0 if written is None else max(0.0, written.modified - version.modified)


def parse(version: Version) -> dict[str, Any]:
    """The values in an `owner.json`; empty if it is invalid."""
    return json_object(version.data) or {}


def describe(values: Values) -> str:
    """`process 7 on host`, from untrusted values."""
    pid, host = (printable_value(values.get(name)) for name in ("pid", "host"))
    return f"process {pid} on {host}"


def printable_value(value: object) -> str:
    """A number or text from untrusted values."""
    return shown(str(value)) if isinstance(value, int | str) else "?"


def in_use(output: str, values: Values | None = None) -> OutputInUse:
    """The error for an output that another command owns."""
    since = "" if values is None else f" since {printable_value(values.get('started'))}"
    return OutputInUse(
        f"{output} is in use by {'another run' if values is None else describe(values)}{since}",
        hint=f"wait for it (pgcli status {shlex.quote(output)}), end it, or choose another <-o>",
    )


@cache
def boot_id() -> str:
    """The boot id of this machine; its name if the system has no boot id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
