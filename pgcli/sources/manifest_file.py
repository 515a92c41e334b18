"""Opens the file of a manifest, local or remote."""

from __future__ import annotations

from typing import Any, BinaryIO

from pgcli.regular_file import open_regular
from pgcli.remote import RemoteFile
from pgcli.remote.urls import url_path

#: A path, or a remote file; as text either is its name in messages.
FileLocation = str | RemoteFile


def open_file(location: FileLocation) -> BinaryIO:
    """The file, opened for reading, seekable. Raises OSError."""
    return location.open() if isinstance(location, RemoteFile) else open_regular(location)


def path_of(location: FileLocation) -> str:
    """The path, or the path in the URL; its ending names the format."""
    return url_path(location.address) if isinstance(location, RemoteFile) else location


def error_text(problem: Any) -> str:
    """The text of an OSError, the system's if it has one."""
    return problem.strerror or str(problem)
