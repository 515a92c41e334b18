"""Checks of files and folders that are written beside or instead of rows, before any work."""

from __future__ import annotations

import os
from pathlib import Path

from pgcli.errors import OutputExists, UsageError
from pgcli.stores import writing

#: A file in every folder that an export wrote; other folders are never replaced.
MARK = ".pgcli-export"


def check_target(target: Path, *, is_folder: bool, overwrite: bool, option: str = "-o") -> None:
    """Check a file or folder that is written as a whole. Raises what `writing.check_target` does.

    A folder is replaced only if an export wrote it.
    """
    is_link = is_folder and target.is_symlink()
    if is_folder and os.path.lexists(target) and (is_link or is_foreign_folder(target)):
        raise OutputExists(
            f"{target} was not written by an export, and is not replaced",
            hint=f"name another folder with {option}",
        )
    writing.check_target(target, option, is_folder=is_folder, overwrite=overwrite)


def is_foreign_folder(folder: Path) -> bool:
    """Whether the folder has files, and no export wrote it."""
    try:
        return any(folder.iterdir()) and not (folder / MARK).is_file()
    except OSError:  # it is not a folder, or cannot be read
        return False


def check_folder(folder: str, option: str, *, overwrite: bool) -> None:
    """Check the folder of an option, into which files are written; it may be a link to a folder.

    Raises what `writing.check_target` raises.
    """
    if not folder:
        raise UsageError(f"there is no folder {folder!r}", hint=f"name a folder with {option}")
    path = Path(folder)
    path = path.resolve() if path.is_symlink() and path.is_dir() else path
    writing.check_target(path, option, is_folder=True, overwrite=overwrite)
