"""The events of a run in progress, which a program shows or ignores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: Names and values, for example of a summary.
Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence, and what to do about it."""

    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """The start of a stage, which ends the previous one. `total` is None if it is unknown.

    `initial` of the total were done before. A stage without a `unit` counts nothing.
    """

    task: str
    total: int | None = None
    initial: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage: the number of items done, and of failed rows among them.

    `details` add text.
    """

    done: int
    errors: int = 0
    waits_for: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class StageEnd:
    """The end of a stage."""


@dataclass(frozen=True, slots=True)
class FactTable:
    """Names and values: the plan of a run, or its summary."""

    facts: Facts


Event: TypeAlias = "Message | Stage | Progress | StageEnd | FactTable"
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Show nothing."""


def tracked(
    items: Iterable[T], on_event: OnEvent, task: str, total: int | None = None, *, unit: str = ""
) -> Generator[T]:
    """The items, counted as a stage."""
    on_event(Stage(task, total, unit=unit))
    try:
        for number, item in enumerate(items, start=1):
            yield item
            on_event(Progress(number))
    finally:
        on_event(StageEnd())
