"""Checks that an output can be written, before anything is read, loaded or created."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.state.added_prompts import find_record
from pgcli.state.lock import check_unlocked, in_use
from pgcli.state.owners import owners
from pgcli.state.run_record import ResumeRules, check_version, why_no_record
from pgcli.state.state_folder import state_folder
from pgcli.state.write_errors import already_exists, wrap_write_errors

Kind = Literal["file", "folder"]


def check_destination(
    path: Path, *, kind: Kind = "file", overwrite: bool = False, option: str = "-o"
) -> None:
    """Raise if `path` cannot become a file or folder of ours. Creates nothing.

    Raises UsageError for a missing parent folder or the wrong kind, OutputExists (13) for a file
    or a folder with content that may not be replaced, and OutputFailed (14) without permission.
    Hints name the `option` that chose the path.
    """
    with wrap_write_errors(path):
        check_kind(path, kind, option)
        if is_occupied(path) and not overwrite:
            raise already_exists(path, option=option) if kind == "file" else not_empty(path, option)
        check_permission(path, option)


def not_empty(path: Path, option: str) -> OutputExists:
    """The error for a folder whose files must not be replaced."""
    return OutputExists(
        f"{path} is not empty",
        hint=f"--overwrite replaces its files; another {option} leaves them alone",
    )


def check_resumable(
    path: Path,
    settings: Mapping[str, Any],
    *,
    kind: Kind = "file",
    overwrite: bool = False,
    part: str = "",
    rules: ResumeRules | None = None,
) -> bool:
    """Whether an earlier run began the output; raise if it can neither be created nor resumed.

    Needs neither the input nor the model: settings that are not known yet are compared later, by
    `RunState.check_settings`. Raises what `check_destination` raises, OutputInUse (12) if another
    process writes the output or this `part` of it, and OutputExists (13) if the output belongs to
    a run of other settings or of a newer pgcli.
    """
    with wrap_write_errors(path):
        check_kind(path, kind, "-o")
        check_state_folder(state_folder(path))
        check_unlocked(state_folder(path), part=part, replaces=overwrite)
        if overwrite and any(owner.is_running for owner in owners(state_folder(path))):
            raise in_use(state_folder(path), "")  # on another host, whose locks are not seen here
        if not overwrite:
            check_version(path)
        record = None if overwrite else find_record(path, settings, rules or ResumeRules())
        if record is None and is_occupied(path) and not overwrite:
            raise unknown_output(path)
        check_permission(path, "-o")
    return record is not None


def unknown_output(path: Path) -> OutputExists:
    """The error for an output whose state folder has no usable record of a run."""
    return already_exists(path, f" and cannot be resumed: {why_no_record(path)}")


def check_kind(path: Path, kind: Kind, option: str) -> None:
    """Raise UsageError if the parent folder is missing or something of another kind exists."""
    if not path.parent.is_dir():
        raise UsageError(
            f"there is no folder {path.parent}",
            hint=f"make it first: mkdir -p {shlex.quote(str(path.parent))}",
        )
    if path.exists() and not (path.is_dir() if kind == "folder" else path.is_file()):
        wanted = "folder" if kind == "folder" else "regular file"
        raise UsageError(f"{path} is not a {wanted}", hint=f"name another one with {option}")


def check_state_folder(folder: Path) -> None:
    """Raise OutputExists for anything else of the state folder's name. Raises OSError."""
    if not folder.is_dir() and os.path.lexists(folder):
        raise OutputExists(
            f"{folder}, where the state of the run is to be, is not a folder",
            hint="move it away, or choose another -o",
        )


def is_occupied(path: Path) -> bool:
    """Whether a file, a link, or a folder with something in it has the name."""
    return os.path.lexists(path) and (path.is_symlink() or not is_empty_folder(path))


def is_empty_folder(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def check_permission(path: Path, option: str) -> None:
    """Raise OutputFailed where the path, or the folder it is to be in, is not writable."""
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK | (os.X_OK if existing.is_dir() else 0)):
        raise OutputFailed(
            f"{path} is not writable",
            hint=f"correct its permissions, or choose another {option}",
        )
