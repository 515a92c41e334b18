"""What a run says while it goes on: a program shows it, or ignores it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: Names and values, as of a summary.
Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence, and what to do about it."""

    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage begins, and ends the one before. `total` is unknown where it is None.

    `initial` of the total were done before. Without a `unit` nothing is counted.
    """

    task: str
    total: int | None = None
    initial: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the stage is: what is done in all, and how many rows of it have errors.

    `details` say more in words. `is_asked`: the user wants to see it now.
    """

    done: int
    errors: int = 0
    waits_for: str = ""
    details: str = ""
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class StageEnd:
    """The stage is over."""


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
    """The items, as a stage that counts them."""
    on_event(Stage(task, total, unit=unit))
    try:
        for number, item in enumerate(items, start=1):
            yield item
            on_event(Progress(number))
    finally:
        on_event(StageEnd())
