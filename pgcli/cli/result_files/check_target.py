"""Checks of files and folders that are written beside or instead of rows, before any work."""

from __future__ import annotations

from pathlib import Path

from pgcli.errors import OutputExists, UsageError
from pgcli.state.destination import Kind, check_destination, is_occupied, not_empty

#: A file in every folder that an export wrote; other folders are never replaced.
MARK = ".pgcli-export"


def check_target(target: Path, *, is_folder: bool, overwrite: bool, option: str = "-o") -> None:
    """Check a file or folder that is written as a whole. Raises what `check_destination` raises."""
    kind: Kind = "folder" if is_folder else "file"
    check_destination(target, kind=kind, overwrite=overwrite or is_folder, option=option)
    if not is_folder or not is_occupied(target):
        return
    if target.is_symlink() or not (target / MARK).is_file():
        raise OutputExists(
            f"{target} was not written by an export, and is not replaced",
            hint=f"name another folder with {option}",
        )
    if not overwrite:
        raise not_empty(target, option)


def check_folder(folder: str, option: str, *, overwrite: bool) -> None:
    """Check the folder of an option, into which files are written; it may be a link to a folder.

    Raises what `check_destination` raises.
    """
    if not folder:
        raise UsageError(f"there is no folder {folder!r}", hint=f"name a folder with {option}")
    path = Path(folder)
    path = path.resolve() if path.is_symlink() and path.is_dir() else path
    check_destination(path, kind="folder", overwrite=overwrite, option=option)
