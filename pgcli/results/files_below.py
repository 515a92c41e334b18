"""Writes files below a folder that others may write to: no link in it is followed."""

from __future__ import annotations

from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed
from pgcli.stores import LocalStore

DRAW_HINT = "free disk space, check the folder's permissions, or choose another with --draw"


def write_below(
    folder: str,
    name: str,
    data: bytes,
    *,
    hint: str = DRAW_HINT,
    replace: bool = True,
) -> bool:
    """Write `folder/name`, replacing an existing file; `name` is a relative path with slashes.

    Returns False without `replace` if the file exists. Missing folders are created. A link is
    replaced, not followed, except for `folder` itself. A killed process leaves at most a hidden
    file. Raises OutputFailed with the `hint`.
    """
    try:
        store = LocalStore(Path(folder), follow=True)
        return store.publish(name, lambda file: file.write(data), replace=replace, durable=False)
    except FileNotFoundError as problem:
        raise draw_error(f"{folder}/{name}", "the folder does not exist", hint) from problem
    except (OutputFailed, OutputExists) as problem:
        raise OutputFailed(str(problem), hint=hint) from problem


def draw_error(path: str, reason: str, hint: str = DRAW_HINT) -> OutputFailed:
    """The error for an image that could not be written."""
    return OutputFailed(f"cannot write {path}: {reason}", hint=hint)
