"""A file with rows, wherever it is: on this machine, or at an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from pgcli.remote import RemoteFile
from pgcli.remote.urls import url_path
from pgcli.sources.readers import kind_of

#: A path, or an address and the way to it; as text either is what messages call it.
Where = str | RemoteFile


def opened(where: Where) -> BinaryIO:
    """The file, to be read from any place. Raises OSError."""
    return where.open() if isinstance(where, RemoteFile) else Path(where).open("rb")


def kind(where: Where) -> str:
    """The ending that tells how the file's rows are read; nothing where it has none."""
    return kind_of(url_path(where.address) if isinstance(where, RemoteFile) else where) or ""


def why(problem: Any) -> str:
    """What an OSError says, the system's words if it has them."""
    return problem.strerror or str(problem)
