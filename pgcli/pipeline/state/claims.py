"""Chunks of an output that processes claim, so that each is computed by one of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pgcli.pipeline.state.processes import Process, living
from pgcli.pipeline.state.record import parse_object
from pgcli.stores import Store

CLAIMS = "claims/"
#: Between two looks for chunks that other processes leave: at first, and after many.
POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 8.0
#: A chunk whose process died so often is computed row by row; such a row is an error row then.
MAX_DEATHS = 2
AHEAD = 4  # chunks that are left where a process prepares another one


@dataclass
class Claim:
    """A chunk that this process computes: how many processes died of it, and of which row.

    While `is_loading` the model is loaded, and a process that dies does not die of the chunk.
    """

    number: int
    deaths: int = 0
    row: int | None = None
    row_deaths: int = 0
    is_done: bool = False
    is_loading: bool = False

    @property
    def is_split(self) -> bool:
        """Whether the chunk is computed row by row."""
        return self.deaths >= MAX_DEATHS


class Claims:
    """The chunks of an output, of which each process computes those that it claims first.

    `claims/N` holds the process that computes chunk N. It stays until the output is complete: who
    creates it knows that nobody has computed the chunk, but for a process that has died. The chunk
    of such a process is free. Should two processes compute one chunk all the same, the first that
    is complete stays. `complete` says of which of some chunks the rows are there.
    """

    def __init__(
        self,
        store: Store,
        process: Process,
        numbers: Iterable[int],
        complete: Callable[[Collection[int]], Collection[int]],
    ):
        self._store, self._process, self._complete = store, process, complete
        self._unseen = list(reversed(list(numbers)))  # the next one last
        self._taken: set[int] = set()  # by others, when they were looked at

    @property
    def has_many(self) -> bool:
        """Whether several chunks may be free, so that one can be prepared ahead."""
        return len(self._unseen) > AHEAD

    def next(
        self, should_stop: Callable[[], bool], *, waits: bool = True, is_loading: bool = False
    ) -> Claim | None:
        """The next free chunk; None if all are complete, or with `waits` off if none is free.

        An engine of a command waits for no other one: the command begins a new one in place of one
        that dies. Raises OutputFailed.
        """
        pause = POLL_SECONDS
        while not should_stop():
            claim = self._unclaimed(is_loading=is_loading)
            if claim is not None or not waits:
                return claim
            if (claim := self._take_over()) is not None:
                return claim
            if not self._taken or self._process.values.get("run") is not None:
                return None
            time.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
        return None

    def update(self, claim: Claim) -> None:
        """Write what is known of a claimed chunk. Raises OutputFailed."""
        self._store.replace(claim_name(claim.number), self._content(claim))

    def release(self, number: int) -> None:
        """Remove the claim of a chunk that is not complete. Raises OutputFailed.

        That of a command's engine stays, so that no engine which is not stopped yet begins anew
        what this one leaves; it does not count in the next command.
        """
        if self._process.values.get("run") is None:
            self._store.delete([claim_name(number)])

    def _unclaimed(self, *, is_loading: bool) -> Claim | None:
        """The next chunk that no process has claimed."""
        if not self._unseen:
            return None
        before = claim_name(max(0, self._unseen[-1] - 1))
        names = {entry.name for entry in self._store.list(CLAIMS, after=before)}
        while self._unseen:
            claim = Claim(self._unseen.pop(), is_loading=is_loading)
            if claim_name(claim.number) not in names and self._create(claim):
                return claim
            self._taken.add(claim.number)
        return None

    def _create(self, claim: Claim) -> bool:
        return self._store.create(claim_name(claim.number), self._content(claim))

    def _take_over(self) -> Claim | None:
        """A chunk whose process has died or has left it."""
        self._taken.difference_update(self._complete(self._taken))
        claims = {
            number: parse_object(self._store.read(claim_name(number)))
            for number in sorted(self._taken)
        }
        # after the claims were read: each process is registered before it claims
        alive = living(self._store, self._process.id) if claims else set()
        free = []
        for number, values in claims.items():
            if self._is_done(values):
                self._taken.discard(number)
            elif values is None or str(values.get("process")) not in alive:
                free.append(number)
        # its process may have completed it since the first look, and ended
        for number in sorted(set(free).difference(self._complete(free))):
            name, claim = claim_name(number), self._inherited(number, claims[number] or {})
            if parse_object(self._store.read(name)) != claims[number]:
                continue  # another process has taken it over since
            self._store.delete([name])
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

    def _inherited(self, number: int, values: Mapping[str, Any]) -> Claim:
        """The claim of a chunk whose process has died.

        An engine that died with its command did not die of an image, nor did one that was loading.
        """
        if values.get("done"):
            return Claim(number)  # for an earlier command
        deaths, row, row_deaths = (
            value if isinstance(value := values.get(name), int) else None
            for name in ("deaths", "row", "row_deaths")
        )
        run = values.get("run")
        is_other = run is not None and run != self._process.values.get("run")
        if not values or values.get("loading") or is_other:
            return Claim(number, deaths or 0, row, row_deaths or 0)
        return Claim(number, (deaths or 0) + 1, row, (row_deaths or 0) + (row is not None))

    def _content(self, claim: Claim) -> bytes:
        values = {
            "process": self._process.id,
            "run": self._process.values.get("run"),
            "deaths": claim.deaths,
            "row": claim.row,
            "row_deaths": claim.row_deaths,
            "done": claim.is_done,
            "loading": claim.is_loading,
        }
        return json.dumps(values).encode()


def claim_name(number: int) -> str:
    """The name of the file that says who computes a chunk. Names sort as their numbers do."""
    return f"{CLAIMS}{number:012}"


def remove_claims(store: Store) -> None:
    """Remove all claims of an output that is complete."""
    store.delete([entry.name for entry in store.list(CLAIMS)])


def free_chunks(store: Store, engine: str, reported: Container[int]) -> None:
    """Remove the claims of chunks that an engine completed and died before it reported them."""
    for entry in list(store.list(CLAIMS)):
        values = parse_object(store.read(entry.name)) or {}
        is_done = values.get("done") and values.get("process") == engine
        if is_done and int(entry.name.removeprefix(CLAIMS)) not in reported:
            store.delete([entry.name])
