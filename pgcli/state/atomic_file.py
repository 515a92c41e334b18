"""Files that are replaced as a whole: a reader finds the old one or the new one."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from pgcli.printable import is_deep
from pgcli.regular_file import read_text
from pgcli.state.write_errors import fsync, wrap_write_errors

#: What a file system without hard links answers to `link`.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
MAX_NAME_BYTES = 200  # of a path in the name of a temporary one; file systems take 255


def write_json(file: Path, value: Any, *, durable: bool = True, replace: bool = True) -> bool:
    """Write the value as JSON; a `durable` file survives a power loss.

    Returns False where a file of that name exists and is not to be replaced. Raises OutputFailed.
    """
    temporary = temporary_path(file)
    with wrap_write_errors(file):
        try:
            with suppress(InterruptedError):  # by `close`, after everything is written
                temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
            return publish_file(temporary, file, replace=replace, durable=durable)
        finally:
            temporary.unlink(missing_ok=True)


def temporary_path(path: Path, ending: str = ".part") -> Path:
    """A hidden name beside the path that nothing has, also no process of a container or host with
    the same number."""
    name = os.fsencode(path.name)[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    return path.with_name(f".{name}.{token_hex(6)}{ending}")


def read_json(file: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None if the file is missing or damaged."""
    try:
        return parse_values(read_text(file))
    except (OSError, ValueError):
        return None


def parse_values(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object of the text; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deep(value) else None


def publish_file(temporary: Path, file: Path, *, replace: bool, durable: bool = True) -> bool:
    """Give a complete temporary file its final name.

    Returns False where a file of that name exists and is not to be replaced: the first process
    wins. The temporary file is gone afterwards. Raises OutputFailed.
    """
    with wrap_write_errors(file):
        if durable:
            fsync(temporary)
        if replace:
            temporary.replace(file)
        elif not link_if_free(temporary, file):
            temporary.unlink()
            return False
        temporary.unlink(missing_ok=True)
        if durable:
            fsync(file.parent)
    return True


def link_if_free(temporary: Path, file: Path) -> bool:
    """Give the file a second name unless that exists; renames where hard links are not supported.

    Raises OSError.
    """
    try:
        os.link(temporary, file)
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        if file.exists():
            return False
        temporary.rename(file)
    return True
