"""Writes a file or folder under a temporary name, which becomes the output in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgcli.cli.result_files.check_target import MARK, check_target
from pgcli.state.atomic_file import publish_file
from pgcli.state.write_errors import already_exists, fsync, wrap_write_errors

MAX_NAME_BYTES = 200  # of the target's name in the temporary name; file systems take 255


@contextmanager
def publish(target: Path, *, is_folder: bool, overwrite: bool) -> Iterator[Path]:
    """A temporary path that becomes the target if the block succeeds, and is removed if not.

    Raises OutputExists where the target has been written meanwhile, and OutputFailed.
    """
    name = os.fsencode(target.name)[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    part = target.with_name(f".{name}.{os.getpid()}.part")
    with wrap_write_errors(target):
        try:
            if is_folder:
                part.mkdir()
                (part / MARK).write_text("made by pgcli export\n", encoding="utf-8")
            yield part
            check_target(target, is_folder=is_folder, overwrite=overwrite)
            if is_folder:
                replace_folder(part, target)
            elif not publish_file(part, target, replace=overwrite):
                raise already_exists(target)
        finally:
            if is_folder:
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def replace_folder(part: Path, target: Path) -> None:
    """Rename the folder, and remove the earlier export that it replaces."""
    old = part.with_suffix(".old")
    if target.is_dir() and any(target.iterdir()):
        target.rename(old)
    part.rename(target)
    fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
