"""Small files of a run's own, replaced as a whole: a reader finds the old one or the new one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pgcli.printable import is_deep
from pgcli.state.write_errors import sync, writing

#: What a file system answers that gives a file but one name.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)


def put(file: Path, value: Any, *, lasting: bool = True) -> None:
    """Write the value as JSON in the place of what the file holds; `lasting` outlives a power cut.

    Raises OutputFailed.
    """
    with _beside(file, value, lasting=lasting) as beside:
        beside.replace(file)


def put_new(file: Path, value: Any) -> bool:
    """Write the value as JSON if there is no file of that name yet; False where there is one."""
    with _beside(file, value, lasting=True) as beside:
        return named(beside, file)


@contextmanager
def _beside(file: Path, value: Any, *, lasting: bool) -> Iterator[Path]:
    """The value as JSON in a file beside, to be given its name in the block, and gone after it."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with writing(file):
        try:
            with suppress(InterruptedError):  # of closing it, when all is written
                beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
            if lasting:
                sync(beside)
            yield beside
        finally:
            beside.unlink(missing_ok=True)
        if lasting:
            sync(file.parent)


def named(beside: Path, file: Path) -> bool:
    """Give a complete file its name if that is free; where files have but one, as its only one."""
    try:
        os.link(beside, file)
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        if file.exists():
            return False
        beside.rename(file)
    return True


def got(file: Path) -> dict[str, Any] | None:
    """The JSON object that the file holds; None where there is none, or it is damaged."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deep(value) else None
