"""Settings of a run: their fingerprint, and the difference between two runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
MAX_CHARACTERS = 60  # of a value in a message


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as they read back from JSON: tuples as lists, other objects as text."""
    values: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return values


def fingerprint(settings: Settings) -> str:
    """A digest that is equal for equal settings, in any order."""
    text = json.dumps(plain(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: Settings, new: Settings) -> list[str]:
    """`name: old -> new` for each setting of the new run that the old one has otherwise.

    Settings that the new run does not know yet are not compared.
    """
    old, new = plain(old), plain(new)
    return [
        f"{name}: {shorten(old.get(name))} -> {shorten(value)}"
        for name, value in new.items()
        if old.get(name) != value
    ]


def shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
