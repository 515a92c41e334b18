"""What a check finds: a name, a state, what is the case, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`bad` is in the way of work, `warn` makes it slower or less than it could be."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warn(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "warn", found, remedy)


def bad(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "bad", found, remedy)
