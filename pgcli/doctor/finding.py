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
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warn(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "warn", found, remedy)


def bad(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "bad", found, remedy)
