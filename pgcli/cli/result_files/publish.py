"""What is made as a whole: written apart, and then there under its name in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgcli.errors import OutputExists, UsageError
from pgcli.state.atomic_file import link_if_free
from pgcli.state.write_errors import already_exists, fsync, wrap_write_errors

#: In a folder that an export made: without it nothing there is replaced.
MARK = ".pgcli-export"
MAX_NAME_BYTES = 200  # bytes of a name that the part's name has, of 255 that file systems take


def check_target(target: Path, *, is_folder: bool, overwrite: bool) -> None:
    """Raise where the target cannot come to be: UsageError, OutputExists."""
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", hint="make it first")
    if not os.path.lexists(target) or is_empty(target, is_folder=is_folder):
        return
    if target.is_dir() != is_folder:
        kind, wanted = ("a folder", "a file") if target.is_dir() else ("no folder", "a folder")
        raise UsageError(f"{target} is {kind}, and {wanted} is made", hint="name another with -o")
    if not overwrite:
        raise already_exists(target)
    if is_folder and (target.is_symlink() or not (target / MARK).is_file()):
        raise OutputExists(
            f"{target} holds something that no export made, and is not replaced",
            hint="name another folder with -o",
        )


def is_empty(target: Path, *, is_folder: bool) -> bool:
    """Whether it is a folder with nothing in it, where one is wanted."""
    return is_folder and target.is_dir() and not target.is_symlink() and not any(target.iterdir())


@contextmanager
def publish(target: Path, *, is_folder: bool, overwrite: bool) -> Iterator[Path]:
    """A place to write to, which becomes the target when the block ends well, and else nothing.

    Raises OutputExists where the target has come to be meanwhile, and OutputFailed.
    """
    begun = os.fsencode(target.name)[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    part = target.with_name(f".{begun}.{os.getpid()}.part")
    with wrap_write_errors(target):
        try:
            if is_folder:
                part.mkdir()
                (part / MARK).write_text("made by pgcli export\n", encoding="utf-8")
            yield part
            check_target(target, is_folder=is_folder, overwrite=overwrite)
            if is_folder:
                place_folder(part, target)
            else:
                place_file(part, target, overwrite=overwrite)
        finally:
            if is_folder:
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def place_file(part: Path, target: Path, *, overwrite: bool) -> None:
    """Give the file its name, on disk before it has it."""
    fsync(part)
    if overwrite:
        part.replace(target)
    elif not link_if_free(part, target):
        raise already_exists(target)
    fsync(target.parent)


def place_folder(part: Path, target: Path) -> None:
    """Give the folder its name; what an export had made there before is gone after it."""
    old = part.with_suffix(".old")
    if target.is_dir() and any(target.iterdir()):
        target.rename(old)
    part.rename(target)
    fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
