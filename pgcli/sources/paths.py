"""How a path is written in a row and read back, and where a manifest's paths may lead."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pgcli.records import Fault
from pgcli.remote.addresses import KNOWN, joined, without_user

_SCHEME = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+)://|(data):", re.IGNORECASE)
_DRIVE_OR_SHARE = re.compile(r"[A-Za-z]:[\\/]|\\\\")

_URL_BLOCKED = Fault(
    "url_blocked", "The row names an address, and addresses are not fetched without --allow-urls."
)
_UNKNOWN_SCHEME = Fault("url_blocked", "The row names an address of a kind that is not read.")
_OUTSIDE = Fault(
    "path_not_allowed",
    "The path leads outside the folder it belongs to; --allow-outside-root allows that.",
)
_OUT_OF_ADDRESS = Fault(
    "path_not_allowed", "The path leads outside the folder of the manifest's address."
)
MISSING = Fault("missing", "The row names no picture.")
_TOO_LONG = Fault("missing", "The path is longer than that of any file.")
#: Linux's PATH_MAX. To follow the links of a path takes time that grows with its square.
LONGEST_PATH = 4096


class Placed(NamedTuple):
    """Where a row's picture is: as the output shows it, as it is opened, or why it must not be."""

    image: str
    path: str | None
    fault: Fault | None = None


def scheme(text: str) -> str | None:
    """The scheme of an address (`s3`, `https`), None for a path and for a `file:` URI."""
    match = _SCHEME.match(text)
    return (match[1] or match[2]).lower() if match else None


def shown(path: str) -> str:
    """The path as the output writes it: a `file:` URI if it is not UTF-8 or looks like a URI."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _uri(path)
    return _uri(path) if path.startswith("file:") else without_user(path)


def real(text: str) -> str:
    """The path that a `file:` URI stands for, undecodable bytes as surrogates; others unchanged."""
    if not text.startswith("file:"):
        return text
    rest = text.removeprefix("file:")
    if rest.startswith("//"):
        rest = rest.removeprefix("//").removeprefix("localhost")
    return os.fsdecode(unquote_to_bytes(rest.encode("utf-8", "surrogateescape")))


def as_given(text: str) -> str:
    """What the user or a row typed, if it can be written; a URI of it if not."""
    return text if text.startswith("file:") and text.isascii() else shown(real(text))


def anywhere(text: str, *, allow_urls: bool = False) -> Placed:
    """The place of a path that may lie anywhere, as on standard input."""
    if scheme(text):
        return away(text, allow_urls=allow_urls)
    if len(text) > LONGEST_PATH * 3:  # a byte of a URI may take three
        return Placed(as_given(text), None, _TOO_LONG)
    return Placed(as_given(text), real(text))


def away(text: str, *, allow_urls: bool) -> Placed:
    """The place of an address, which is shown without a password."""
    if not allow_urls:
        return Placed(shown(text), None, _URL_BLOCKED)
    if scheme(text) not in KNOWN:
        return Placed(shown(text), None, _UNKNOWN_SCHEME)
    if len(text) > LONGEST_PATH * 3:
        return Placed(shown(text), None, _TOO_LONG)
    return Placed(shown(text), text)


def beneath(folder: str, text: str) -> Placed:
    """The place of a path that a manifest at an address names, relative to the address's folder.

    None leads to this machine, nor out of the folder: rows may name whole addresses instead.
    """
    is_plain = not {".", ".."} & set(text.split("/"))
    path = text if is_plain else posixpath.normpath(text)
    if path.startswith(("/", "../", "file:")) or path == ".." or "\0" in path:
        return Placed(shown(joined(folder, text)), None, _OUT_OF_ADDRESS)
    if len(path) > LONGEST_PATH:
        return Placed(shown(joined(folder, path)), None, _TOO_LONG)
    return Placed(shown(joined(folder, path)), joined(folder, path))


def below(folder: str, text: str, root: str | None) -> Placed:
    """The place of a manifest's path, joined to the manifest's `folder` as typed.

    Where `root` is given (a real path), what leads outside it is at fault: by `..`, as an absolute
    path, through a link, or in a way only other systems understand.
    """
    if scheme(text):
        return away(text, allow_urls=False)
    path = real(text)
    joined = os.path.join(folder, path)  # noqa: PTH118 - Path would drop a leading `./`
    if "\0" in path or (root is not None and _DRIVE_OR_SHARE.match(path)):
        return Placed(shown(joined), None, _OUTSIDE)
    if len(joined) > LONGEST_PATH:  # characters, of which each has a byte at least
        return Placed(shown(joined), None, _TOO_LONG)
    if root is not None and not leads_inside(joined, root):
        return Placed(shown(joined), None, _OUTSIDE)
    return Placed(shown(joined), joined)


def leads_inside(path: str, root: str) -> bool:
    """Whether the path, all links followed, lies in `root` (a real path)."""
    target = os.path.realpath(path)
    return target == root or target.startswith(root.rstrip("/") + "/")


def inside_or_fault(path: str, root: str) -> Fault | None:
    """None for a path that stays in `root`, links followed; else the fault."""
    return None if leads_inside(path, root) else _OUTSIDE


def _uri(path: str) -> str:
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name decodes to
        raw = path.encode("utf-8", "surrogatepass")
    return ("file://" if Path(path).is_absolute() else "file:") + quote_from_bytes(raw)
