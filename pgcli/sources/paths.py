"""How a path is written in a row and read back, and where a manifest's paths may lead."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pgcli.records import Fault
from pgcli.remote.urls import SCHEMES, has_credentials, join_url, without_credentials

_SCHEME = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+)://|(data):", re.IGNORECASE)
_DRIVE_OR_SHARE = re.compile(r"[A-Za-z]:[\\/]|\\\\")

_URL_BLOCKED = Fault(
    "url_blocked", "The row names an address, and addresses are not fetched without --allow-urls."
)
_UNKNOWN_SCHEME = Fault("url_blocked", "The row names an address of a kind that is not read.")
_CREDENTIALS = Fault("url_blocked", "The address in the row holds a user name or a password.")
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


class ImageLocation(NamedTuple):
    """Where a row's picture is: as the output shows it, as it is opened, or why it must not be."""

    image: str
    path: str | None
    fault: Fault | None = None


def url_scheme(text: str) -> str | None:
    """The scheme of an address (`s3`, `https`), None for a path and for a `file:` URI."""
    match = _SCHEME.match(text)
    return (match[1] or match[2]).lower() if match else None


def display_path(path: str) -> str:
    """The path as the output writes it: a `file:` URI if it is not UTF-8 or looks like a URI."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _uri(path)
    return _uri(path) if path.startswith("file:") else without_credentials(path)


def parse_path(text: str) -> str:
    """The path that a `file:` URI stands for, undecodable bytes as surrogates; others unchanged."""
    if not text.startswith("file:"):
        return text
    rest = text.removeprefix("file:")
    if rest.startswith("//"):
        rest = rest.removeprefix("//").removeprefix("localhost")
    return os.fsdecode(unquote_to_bytes(rest.encode("utf-8", "surrogateescape")))


def display_name(text: str) -> str:
    """What the user or a row typed, if it can be written; a URI of it if not."""
    return text if text.startswith("file:") and text.isascii() else display_path(parse_path(text))


def locate_anywhere(text: str, *, allow_urls: bool = False) -> ImageLocation:
    """The place of a path that may lie anywhere, as on standard input."""
    if url_scheme(text):
        return locate_url(text, allow_urls=allow_urls)
    if len(text) > LONGEST_PATH * 3:  # a byte of a URI may take three
        return ImageLocation(display_name(text), None, _TOO_LONG)
    return ImageLocation(display_name(text), parse_path(text))


def locate_url(text: str, *, allow_urls: bool) -> ImageLocation:
    """The place of an address, which is shown without a password."""
    if not allow_urls:
        return ImageLocation(display_path(text), None, _URL_BLOCKED)
    if url_scheme(text) not in SCHEMES:
        return ImageLocation(display_path(text), None, _UNKNOWN_SCHEME)
    if has_credentials(text):
        return ImageLocation(display_path(text), None, _CREDENTIALS)
    if len(text) > LONGEST_PATH * 3:
        return ImageLocation(display_path(text), None, _TOO_LONG)
    return ImageLocation(display_path(text), text)


def locate_remote(folder: str, text: str) -> ImageLocation:
    """The place of a path that a manifest at an address names, relative to the address's folder.

    None leads to this machine, nor out of the folder: rows may name whole addresses instead.
    """
    is_plain = not {".", ".."} & set(text.split("/"))
    path = text if is_plain else posixpath.normpath(text)
    if path.startswith(("/", "../", "file:")) or path == ".." or "\0" in path:
        return ImageLocation(display_path(join_url(folder, text)), None, _OUT_OF_ADDRESS)
    if len(path) > LONGEST_PATH:
        return ImageLocation(display_path(join_url(folder, path)), None, _TOO_LONG)
    return ImageLocation(display_path(join_url(folder, path)), join_url(folder, path))


def locate_local(folder: str, text: str, root: str | None) -> ImageLocation:
    """The place of a manifest's path, joined to the manifest's `folder` as typed.

    Where `root` is given (a real path), what leads outside it is at fault: by `..`, as an absolute
    path, through a link, or in a way only other systems understand.
    """
    if url_scheme(text):
        return locate_url(text, allow_urls=False)
    path = parse_path(text)
    joined = os.path.join(folder, path)  # noqa: PTH118 - Path would drop a leading `./`
    if "\0" in path or (root is not None and _DRIVE_OR_SHARE.match(path)):
        return ImageLocation(display_path(joined), None, _OUTSIDE)
    if len(joined) > LONGEST_PATH:  # characters, of which each has a byte at least
        return ImageLocation(display_path(joined), None, _TOO_LONG)
    if root is not None and not resolves_inside(joined, root):
        return ImageLocation(display_path(joined), None, _OUTSIDE)
    return ImageLocation(display_path(joined), joined)


def resolves_inside(path: str, root: str) -> bool:
    """Whether the path, all links followed, lies in `root` (a real path)."""
    target = os.path.realpath(path)
    return target == root or target.startswith(root.rstrip("/") + "/")


def outside_fault(path: str, root: str) -> Fault | None:
    """None for a path that stays in `root`, links followed; else the fault."""
    return None if resolves_inside(path, root) else _OUTSIDE


def _uri(path: str) -> str:
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name decodes to
        raw = path.encode("utf-8", "surrogatepass")
    return ("file://" if Path(path).is_absolute() else "file:") + quote_from_bytes(raw)
