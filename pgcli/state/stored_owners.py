"""The processes that write an output in an object store; each gives signs of life."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from secrets import token_hex
from threading import Event, Lock, Thread
from time import monotonic, time
from typing import Any

from pgcli.errors import OutputFailed, OutputInUse
from pgcli.remote.stored_objects import StoredObject, StoredObjects
from pgcli.state.lock import current_process
from pgcli.state.owners import Owner
from pgcli.state.state_folder import OWNER

REFRESH_SECONDS = 30.0  # between two signs of life
#: A process that gave no sign of life for so long does not run any more.
SILENT_SECONDS = 120.0
PART = "part"  # the key of the part of the output that the process writes


class StoredOwners:
    """Objects of the processes that write a stored output, among them this one's.

    A store has no locks that end with a process. So a process of this host runs if the system has
    it, and one of another host until it was silent for SILENT_SECONDS, by the store's clock.
    """

    def __init__(self, objects: StoredObjects, part: str = "", *, replaces: bool = False):
        self._objects = objects
        self._name = f"{OWNER}{part}.{token_hex(4)}.json"
        # a part that replaces the output has the whole of it until the earlier rows are gone
        self._values: dict[str, Any] = {**current_process(), PART: "" if replaces else part}
        self._written_at: float | None = None
        self._lock = Lock()

    @contextmanager
    def registered(self) -> Iterator[None]:
        """A block in which this process owns its part. Raises OutputInUse and OutputFailed.

        Of two processes that begin at one time, none or one gets the part.
        """
        ended = Event()
        thread = Thread(target=self._refresh, args=(ended,), daemon=True)
        try:
            self.write({})
            thread.start()
            self._check_others()
            yield
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()
            with suppress(OutputFailed):
                self._objects.remove([self._name])

    def write(self, values: Mapping[str, Any]) -> None:
        """Store these values with those of this process. Raises OutputFailed."""
        with self._lock:
            self._values |= values
            self._objects.put(self._name, json.dumps(self._values).encode())
            self._written_at = monotonic()

    def others(self) -> dict[str, Owner]:
        """The other processes that write the output, and those that were killed.

        They are by the names of their objects. Raises OutputFailed.
        """
        found = self._objects.names(OWNER)
        now = self._now(found.pop(self._name, None))
        owners = {}
        for name, one in found.items():
            with suppress(ValueError, TypeError, AttributeError, KeyError):  # damaged, or gone
                process = json.loads(self._objects.read(name) or b"")
                silent = max(0.0, now - one.modified)
                is_running = silent < SILENT_SECONDS and not is_dead(process)
                owners[name] = Owner(str(process.pop(PART)), process, is_running, silent)
        return owners

    def remove_killed(self) -> None:
        """Remove the objects of processes that do not run any more. Raises OutputFailed."""
        self._objects.remove(name for name, one in self.others().items() if not one.is_running)

    def _now(self, own: StoredObject | None) -> float:
        """The store's time, as this process's object was written by its clock."""
        if own is None or self._written_at is None:
            return time()
        return own.modified + monotonic() - self._written_at

    def _check_others(self) -> None:
        part = self._values[PART]
        for owner in self.others().values():
            if owner.is_running and (owner.part == part or "" in (owner.part, part)):
                process = owner.process
                raise OutputInUse(
                    f"the output is in use by process {process.get('pid')} on "
                    f"{process.get('host')} since {process.get('since')}",
                    hint="wait for it, end it, or choose another -o; a process that was killed on "
                    f"another host counts as ended after {SILENT_SECONDS:.0f} seconds",
                )

    def _refresh(self, ended: Event) -> None:
        while not ended.wait(REFRESH_SECONDS):
            with suppress(OutputFailed):
                self.write({})


def is_dead(process: Mapping[str, Any]) -> bool:
    """Whether the process was on this host and is gone."""
    pid = process.get("pid")
    if process.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False
