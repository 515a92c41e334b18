"""Writes a file or folder under a temporary name, which becomes the output in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pgcli.results.check_target import MARK, check_target
from pgcli.stores.writing import fsync, make_folder, published, temporary_name, wrap_write_errors

SYNC_THREADS = 16  # file systems write the journal once for several files that are synced together


@contextmanager
def publish(target: Path, *, is_folder: bool, overwrite: bool) -> Iterator[Path]:
    """A temporary path that becomes the target if the block succeeds, and is removed if not.

    Raises OutputExists where the target has been written meanwhile, and OutputFailed.
    """
    if not is_folder:
        with published(target, replace=overwrite) as part:
            yield part
            check_target(target, is_folder=False, overwrite=overwrite)
        return
    part = target.with_name(temporary_name(target.name))
    with wrap_write_errors(target):
        try:
            make_folder(part)
            (part / MARK).write_text("made by pgcli export\n", encoding="utf-8")
            yield part
            check_target(target, is_folder=True, overwrite=overwrite)
            sync_tree(part)
            replace_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def replace_folder(part: Path, target: Path) -> None:
    """Rename the folder, and remove the earlier export that it replaces.

    The earlier export is put back where the folder cannot be renamed. Raises OSError.
    """
    old = target.with_name(temporary_name(target.name, ".old"))
    is_replaced = target.is_dir() and any(target.iterdir())
    if is_replaced:
        target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        if is_replaced:
            old.rename(target)
        raise
    fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Flush all files and names of a folder to disk, except what links lead to. Raises OSError."""
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        for parent, _, names in os.walk(folder):
            files = (Path(parent, name) for name in names)
            list(pool.map(fsync, (file for file in files if not file.is_symlink())))
            fsync(Path(parent))
