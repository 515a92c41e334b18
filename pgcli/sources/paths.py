"""How paths are written in rows and read back: as text, or as a percent-encoded `file:` URI."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pgcli.remote.urls import without_credentials

_SCHEME = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+)://|(data):", re.IGNORECASE)


def url_scheme(text: str) -> str | None:
    """The scheme of a URL (`s3`, `https`); None for a path and for a `file:` URI."""
    match = _SCHEME.match(text)
    return (match[1] or match[2]).lower() if match else None


def display_path(path: str) -> str:
    """The path as the output writes it: a `file:` URI if it is not UTF-8 or looks like a URI."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _file_uri(path)
    return _file_uri(path) if path.startswith("file:") else without_credentials(path)


def parse_path(text: str) -> str:
    """The path of a `file:` URI, undecodable bytes as surrogates; other text unchanged."""
    if not text.startswith("file:"):
        return text
    rest = text.removeprefix("file:")
    if rest.startswith("//"):
        rest = rest.removeprefix("//").removeprefix("localhost")
    return os.fsdecode(unquote_to_bytes(rest.encode("utf-8", "surrogateescape")))


def display_name(text: str) -> str:
    """A name that the user or a row gives, as typed if the output can hold it, else as a URI."""
    return text if text.startswith("file:") and text.isascii() else display_path(parse_path(text))


def absolute_source(name: str, folder: str) -> str:
    """A source as the user typed it in the folder, as the same place named from anywhere.

    Addresses lose their credentials, and are unchanged otherwise, as is `-`.
    """
    if name == "-" or url_scheme(name):
        return without_credentials(name)
    path = os.path.join(folder, parse_path(name))  # noqa: PTH118 - as is the next line
    return display_path(os.path.normpath(path))


def resolves_inside(path: str, root: str) -> bool:
    """Whether the path, all links resolved, is in `root` (a real path)."""
    try:
        target = os.path.realpath(path)
    except ValueError:  # a text that no file name can be: NUL, half of a surrogate pair
        return False
    return target == root or target.startswith(root.rstrip("/") + "/")


def _file_uri(path: str) -> str:
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair, which is not in any decoded file name
        raw = path.encode("utf-8", "surrogatepass")
    return ("file://" if Path(path).is_absolute() else "file:") + quote_from_bytes(raw)
