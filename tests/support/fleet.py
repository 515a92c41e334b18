"""A fleet of engines that take no time, and end when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pgcli.cluster.chunk_driver import Ended, Event, Raised, Returned

#: Given an engine, the method and its arguments: None, or how the engine ends of the call.
Accident = Callable[[int, str, tuple[Any, ...]], str | BaseException | None]


class LightFleet:
    """Engines in `places`; a place whose engine ends takes a new one. `calls` are all calls."""

    def __init__(self, places: int, accident: Accident = lambda *_: None, rows: int = 4):
        self.places, self._accident, self._rows = places, accident, rows
        self.alive: set[int] = set()
        self.started = 0
        self.calls: list[tuple[int, str, tuple[Any, ...]]] = []
        self.stored: dict[int, list[str]] = {}
        self._events: deque[Event] = deque()

    @property
    def size(self) -> int:
        return len(self.alive)

    def grow(self, most: int) -> None:
        while len(self.alive) < min(most, self.places):
            self.alive.add(self.started)
            self.started += 1
            self.call(self.started - 1, "load")

    def call(self, engine: int, method: str, *args: Any) -> None:
        assert engine in self.alive
        self.calls.append((engine, method, args))
        accident = self._accident(engine, method, args)
        if isinstance(accident, BaseException):
            self._events.append(Raised(engine, accident))
        elif accident is not None:
            self._events.append(Ended(engine, accident))
        else:
            self._events.append(Returned(engine, getattr(self, method)(*args)))

    def events(self) -> Sequence[Event]:
        event = self._events.popleft() if self._events else None
        if isinstance(event, Ended):
            self.alive.remove(event.engine)
        return [event] if event else []

    def discard(self, engine: int) -> None:
        self.alive.discard(engine)

    def close(self) -> None:
        self.alive.clear()

    def load(self) -> str:
        return "loaded"

    def begin(self, setup: str) -> None:
        assert setup == "begun loaded"

    def run(self, number: int, ahead: int | None) -> int:
        rows = range(number * self._rows, (number + 1) * self._rows)
        return self.store(number, [f"row {row}" for row in rows])

    def answer(self, rows: range) -> list[str]:
        return [f"row {row}" for row in rows]

    def refuse(self, rows: range) -> list[str]:
        return [f"refused {row}" for row in rows]

    def store(self, number: int, rows: list[str]) -> int:
        assert number not in self.stored
        self.stored[number] = rows
        return number
