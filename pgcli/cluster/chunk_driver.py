"""Divides the chunks of a run among engines that may come, end and fail at any time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from pgcli.errors import NoUsableDevice

#: A chunk whose engine ended so often is answered image by image; an image whose engine then ends
#: as often has error rows.
MAX_DEATHS = 2
#: Engines that may end, one after the other, while no chunk and no image is completed: so many, or
#: twice those that there are.
MAX_DEATHS_IN_A_ROW = 8
CLAIM_SECONDS = 2.0  # between two looks for chunks that other processes leave


@dataclass(frozen=True, slots=True)
class Returned:
    """A call of an engine has returned."""

    engine: int
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """A call of an engine has raised an exception; the engine stays."""

    engine: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """An engine's process or machine has ended."""

    engine: int
    reason: str


Event = Returned | Raised | Ended


class Fleet(Protocol):
    """Engines somewhere, known by numbers. A new one is loaded first, as by a call of `load`."""

    @property
    def size(self) -> int:
        """The number of engines, with those that are not loaded yet."""

    def grow(self, most: int) -> None:
        """Start engines where there is room, as long as there are fewer than `most`."""

    def call(self, engine: int, method: str, *args: Any) -> None:
        """Call a method of an idle engine. What becomes of it is an event."""

    def events(self) -> Sequence[Event]:
        """What has happened; waits a moment if nothing has."""

    def discard(self, engine: int) -> None:
        """End an engine."""

    def close(self) -> None:
        """End all engines."""


class ChunkClaims(Protocol):
    """The chunks that are left, shared with other drivers of the same output."""

    @property
    def left(self) -> int: ...

    def claim(self, count: int = 1, *, spare: int = 0) -> list[int]: ...


@dataclass
class SplitChunk:
    """A chunk that is answered image by image: the rows so far, and the parts that are left."""

    number: int
    parts: deque[range]
    rows: list[Any] = field(default_factory=list)
    deaths: Counter[range] = field(default_factory=Counter)


@dataclass
class EngineWork:
    """What an engine does: a call, of a chunk or of a part of a split one, and the chunk after."""

    method: str
    chunk: int | None = None
    split: SplitChunk | None = None
    ahead: int | None = None


class ChunkDriver:
    """Gives chunks to engines until all are stored.

    An engine answers and stores a chunk by `run(number, ahead)`, whose value is a report; it may
    decode the images of the chunk `ahead`. A chunk whose engine ends is given to another one.
    `split` returns the rows of each image of a chunk, and `begin` what every engine is begun with,
    given what the call of `load` returned. There are at most `most` engines.
    """

    def __init__(
        self,
        fleet: Fleet,
        claims: ChunkClaims,
        split: Callable[[int], Sequence[range]],
        begin: Callable[[Any], Any],
        *,
        most: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self._fleet, self._claims, self._split, self._begin = fleet, claims, split, begin
        self._most, self._should_stop = most, should_stop
        self._work: dict[int, EngineWork] = {}
        self._begun: set[int] = set()
        self._idle: deque[int] = deque()
        self._claimed: deque[int] = deque()
        self._again: deque[int] = deque()  # chunks whose engine has ended
        self._apart: deque[SplitChunk] = deque()
        self._deaths: Counter[int] = Counter()
        self._deaths_in_a_row = 0
        self._claims_at = 0.0
        self.most_at_once = 0

    def reports(self) -> Generator[Any, None, None]:
        """The report of each chunk as it is stored. Raises what an engine raises that others would
        raise too, and NoUsableDevice where engines only end."""
        try:
            while not self._should_stop() and self._claims.left:
                self._fleet.grow(min(self._most or self._claims.left, self._claims.left))
                self._assign()
                for event in self._fleet.events():
                    yield from self._on_event(event)
        finally:
            self._fleet.close()

    @property
    def engines(self) -> int:
        """The number of engines that are begun."""
        return len(self._begun)

    def _assign(self) -> None:
        """Give work to idle engines while there is some."""
        while self._idle and (work := self._next_work(self._idle[0])) is not None:
            self._start(self._idle.popleft(), work)

    def _next_work(self, engine: int) -> EngineWork | None:
        if self._again:
            return EngineWork("run", self._again.popleft())
        if self._apart:
            return split_work(self._apart.popleft())
        chunk = self._take()
        return None if chunk is None else EngineWork("run", chunk, ahead=self._take_ahead())

    def _take(self, spare: int = 0) -> int | None:
        """A chunk that nobody has, if there are more than `spare`; several are claimed at once."""
        if not self._claimed and monotonic() >= self._claims_at:
            self._claimed.extend(self._claims.claim(max(1, self.engines // 16), spare=spare))
            if not self._claimed and not spare:
                self._claims_at = monotonic() + CLAIM_SECONDS
        return self._claimed.popleft() if self._claimed else None

    def _take_ahead(self) -> int | None:
        """A chunk to be prepared, while there are several for each engine."""
        spare = 4 * self.engines
        return self._take(spare) if self._claims.left > spare else None

    def _start(self, engine: int, work: EngineWork) -> None:
        self._work[engine] = work
        self.most_at_once = max(self.most_at_once, self.engines)
        args: tuple[Any, ...] = (work.chunk, work.ahead)
        if work.split is not None:
            parts = work.split.parts
            args = (parts[0],) if parts else (work.split.number, work.split.rows)
        self._fleet.call(engine, work.method, *args)

    def _on_event(self, event: Event) -> Iterator[Any]:
        if event.engine in self._begun and event.engine not in self._work:
            self._begun.discard(event.engine)  # it ended without work
            self._idle.remove(event.engine)
            return
        work = self._work.pop(event.engine, EngineWork("load"))
        if isinstance(event, Returned):
            yield from self._on_return(event.engine, work, event.value)
        elif isinstance(event, Ended):
            self._begun.discard(event.engine)
            self._on_end(work, event.reason)
        elif isinstance(event.error, NoUsableDevice) and self.most_at_once:
            self._fleet.discard(event.engine)  # others have had a device
            self._begun.discard(event.engine)
            self._on_end(work, str(event.error), event.error)
        else:
            raise event.error

    def _on_return(self, engine: int, work: EngineWork, value: Any) -> Iterator[Any]:
        if work.method == "load":
            self._begun.add(engine)
            self._work[engine] = EngineWork("begin")
            self._fleet.call(engine, "begin", self._begin(value))
            return
        if work.method != "begin":
            self._deaths_in_a_row = 0
        if work.split is not None and work.split.parts:
            work.split.parts.popleft()
            work.split.rows.extend(value)
            self._apart.appendleft(work.split)
        elif work.method in ("run", "store"):
            yield value
        if work.ahead is None:
            self._idle.append(engine)
        else:
            self._start(engine, EngineWork("run", work.ahead, ahead=self._take_ahead()))

    def _on_end(self, work: EngineWork, reason: str, error: BaseException | None = None) -> None:
        """Give the engine's chunks to others, or image by image where the engine ended again."""
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > max(MAX_DEATHS_IN_A_ROW, 2 * self._fleet.size):
            raise NoUsableDevice(
                f"{self._deaths_in_a_row} engines ended in a row, the last one: {reason}",
                hint="the logs of Ray have more; the same command resumes the run",
            ) from error
        if work.ahead is not None:
            self._again.append(work.ahead)
        if work.split is not None:
            if work.split.parts:
                work.split.deaths[work.split.parts[0]] += 1
            self._apart.append(work.split)
        elif work.chunk is not None:
            self._deaths[work.chunk] += 1
            if self._deaths[work.chunk] < MAX_DEATHS:
                self._again.append(work.chunk)
            else:
                self._apart.append(SplitChunk(work.chunk, deque(self._split(work.chunk))))


def split_work(split: SplitChunk) -> EngineWork:
    """The next call of a chunk that is answered image by image."""
    if not split.parts:
        return EngineWork("store", split=split)
    is_killer = split.deaths[split.parts[0]] >= MAX_DEATHS
    return EngineWork("refuse" if is_killer else "answer", split=split)
