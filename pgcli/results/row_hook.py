"""Hooks that write something for each saved row: a drawing, a text beside the image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed
from pgcli.records import Answer, Item
from pgcli.stores import LocalStore


class RowHook:
    """Writes something for each saved row; this one writes nothing."""

    def skips(self, item: Item) -> bool:
        """Whether to skip the image; called in input order, before its rows."""
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Called for each row in input order; `is_saved` if an earlier run has saved it."""

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        """Names and texts for the summary. Called once, also after a failure (not `complete`)."""
        return ()


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
