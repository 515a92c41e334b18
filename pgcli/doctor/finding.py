"""The result of a check: a name, a state, a description, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`bad` prevents runs, `warn` makes them slower or limits them."""

    name: str
    state: Severity
    description: str
    remedy: str = ""


def ok(name: str, description: str) -> Finding:
    return Finding(name, "ok", description)


def warn(name: str, description: str, remedy: str) -> Finding:
    return Finding(name, "warn", description, remedy)


def bad(name: str, description: str, remedy: str) -> Finding:
    return Finding(name, "bad", description, remedy)
