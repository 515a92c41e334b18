"""Checks, before any work is done, that an output file or folder can be written."""

from __future__ import annotations

import os
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.state.write_errors import already_exists

#: A file in every folder that an export wrote; other folders are never replaced.
MARK = ".pgcli-export"


def check_target(target: Path, *, is_folder: bool, overwrite: bool) -> None:
    """Check a file or folder that is written as a whole. Raises UsageError and OutputExists."""
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", hint="create it first")
    if not os.path.lexists(target) or is_empty(target, is_folder=is_folder):
        return
    if target.is_dir() != is_folder:
        kind, wanted = ("a folder", "a file") if target.is_dir() else ("not a folder", "a folder")
        raise UsageError(f"{target} is {kind}, but {wanted} is written", hint="name another -o")
    if not overwrite:
        raise already_exists(target)
    if is_folder and (target.is_symlink() or not (target / MARK).is_file()):
        raise OutputExists(
            f"{target} was not written by an export, and is not replaced",
            hint="name another folder with -o",
        )


def is_empty(target: Path, *, is_folder: bool) -> bool:
    """Whether the target is an empty folder, and a folder is to be written."""
    return is_folder and target.is_dir() and not target.is_symlink() and not any(target.iterdir())


def check_folder(folder: str, option: str, *, overwrite: bool) -> bool:
    """Check the folder of an option, into which files are written; return whether it has any.

    Raises UsageError, OutputExists and OutputFailed.
    """
    path = Path(folder)
    if not folder or not path.parent.is_dir():
        missing = path.parent if folder else repr(folder)
        raise UsageError(
            f"there is no folder {missing}", hint=f"create it first, or name another {option}"
        )
    if os.path.lexists(path) and not path.is_dir():
        raise UsageError(f"{folder} is not a folder", hint=f"name a folder with {option}")
    try:
        has_files = path.is_dir() and any(path.iterdir())
    except OSError as problem:
        raise not_writable(folder, option, problem.strerror or str(problem)) from problem
    if has_files and not overwrite:
        raise OutputExists(
            f"{folder} is not empty",
            hint=f"--overwrite writes into it; another {option} leaves it unchanged",
        )
    if not os.access(path if path.is_dir() else path.parent, os.W_OK | os.X_OK):
        raise not_writable(folder, option, "it is not writable")
    return has_files


def not_writable(folder: str, option: str, reason: str) -> OutputFailed:
    return OutputFailed(
        f"cannot write {folder}: {reason}", hint=f"fix it, or name another folder with {option}"
    )
