"""What an output's rows depend on: a fingerprint of it, and how two runs differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists

Settings = Mapping[str, Any]
LONGEST = 60  # characters of a value that a message shows


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as JSON brings them back: tuples as lists, names as text."""
    known: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return known


def fingerprint(settings: Settings) -> str:
    """A digest that is equal for equal settings, whatever their order."""
    text = json.dumps(plain(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: Settings, new: Settings) -> list[str]:
    """What differs, a setting each, among those that the new run knows already."""
    old, new = plain(old), plain(new)
    return [
        f"{name}: {shown(old.get(name))} -> {shown(value)}"
        for name, value in new.items()
        if old.get(name) != value
    ]


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def others(output: Path, differing: list[str]) -> OutputExists:
    """The refusal to go on with an output that other settings made."""
    return OutputExists(
        f"{output} belongs to a run with other settings: {'; '.join(differing)}",
        hint="the command that made it goes on with it; another -o leaves it alone; --overwrite "
        "replaces it",
    )
