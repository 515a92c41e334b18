"""The tokens that are set on this machine: where each is, and which of them hides another."""

from __future__ import annotations

import os
from pathlib import Path

#: Variables that hold a token, the first that is set is taken, before any that is stored.
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def environment_token() -> tuple[str, str] | None:
    """The token in the environment, which must never be shown, and the variable that it is in."""
    for name in VARIABLES:
        if value := os.environ.get(name, "").strip():
            return value, name
    return None


def stored_token(file: Path) -> str | None:
    """The token that `hf auth login` left in its file, which must never be shown."""
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def overriding_variable(file: Path) -> str | None:
    """The variable whose token hides another one, which is stored; None where none is hidden."""
    found, beneath = environment_token(), stored_token(file)
    return found[1] if found and beneath not in (None, found[0]) else None
