"""Checks of files and folders that are written beside rows, before any work."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed, UsageError


def check_target(path: Path, option: str, *, is_folder: bool, overwrite: bool) -> None:
    """Raise if the path cannot become a file or folder of ours. Creates nothing.

    Raises UsageError for a missing parent folder or the wrong kind, OutputExists for a file, or a
    folder with something in it, that may not be replaced, and OutputFailed without permission.
    Hints name the `option` that chose the path.
    """
    try:
        if not str(path) or not path.parent.is_dir():
            hint = f"make it first: mkdir -p {shlex.quote(str(path.parent))}"
            raise UsageError(f"there is no folder {path.parent}", hint=hint)
        if path.exists() and not (path.is_dir() if is_folder else path.is_file()):
            kind = "folder" if is_folder else "regular file"
            raise UsageError(f"{path} is not a {kind}", hint=f"name another one with {option}")
        is_empty = is_folder and path.is_dir() and next(path.iterdir(), None) is None
        if os.path.lexists(path) and not is_empty and not overwrite:
            raise OutputExists(
                f"{path} is not empty" if is_folder else f"{path} exists",
                hint=f"--overwrite replaces {'its files' if is_folder else 'it'}; another {option} "
                "leaves it alone",
            )
        existing = path if path.exists() else path.parent
        if not os.access(existing, os.W_OK | (os.X_OK if existing.is_dir() else 0)):
            raise OutputFailed(
                f"{path} is not writable",
                hint=f"correct its permissions, or choose another {option}",
            )
    except OSError as problem:
        raise OutputFailed(
            f"cannot write {path}: {problem.strerror or problem}",
            hint=f"correct the path, or choose another {option}",
        ) from problem
