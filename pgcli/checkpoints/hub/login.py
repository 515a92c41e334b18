"""Finds the Hub tokens set on this machine, and which of them hides another."""

from __future__ import annotations

import os
from pathlib import Path

from pgcli.stores.files import read_text

#: Variables that hold a token: the first that is set wins, also over a stored token.
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def environment_token() -> tuple[str, str] | None:
    """The token in the environment, which must never be shown, and the name of its variable."""
    for name in VARIABLES:
        if value := os.environ.get(name, "").strip():
            return value, name
    return None


def stored_token(file: Path) -> str | None:
    """The token that `hf auth login` stored, which must never be shown."""
    try:
        return read_text(file).strip() or None
    except (OSError, ValueError):
        return None


def overriding_variable(file: Path) -> str | None:
    """The variable whose token hides another, stored one; None if none is hidden."""
    found, stored = environment_token(), stored_token(file)
    return found[1] if found and stored not in (None, found[0]) else None
