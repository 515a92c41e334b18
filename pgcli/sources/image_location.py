"""Finds the image that a row names, within the folder that it is allowed to be in."""

from __future__ import annotations

import os
import posixpath
import re
from typing import NamedTuple

from pgcli.records import OUTSIDE_FOLDER, Fault
from pgcli.remote.urls import SCHEMES, has_credentials, join_url
from pgcli.sources.paths import (
    display_name,
    display_path,
    parse_path,
    resolves_inside,
    url_scheme,
)

_DRIVE_OR_SHARE = re.compile(r"[A-Za-z]:[\\/]|\\\\")

_URL_BLOCKED = Fault(
    "url_blocked", "The row names a URL, and URLs are not fetched without --allow-urls."
)
_UNKNOWN_SCHEME = Fault("url_blocked", "The row names a URL of an unsupported scheme.")
_CREDENTIALS = Fault("url_blocked", "The URL in the row holds a user name or a password.")
_OUTSIDE_URL = Fault("path_not_allowed", "The path leads outside the folder of the manifest's URL.")
MISSING = Fault("missing", "The row names no image.")
_TOO_LONG = Fault("missing", "The path is longer than file systems allow.")
#: Linux's PATH_MAX. The time to resolve the links of a path is quadratic in its length.
MAX_PATH = 4096


class ImageLocation(NamedTuple):
    """A row's image: its name in the output, the path or URL to open, and its fault if any.

    With a `root` (a real path), only a file that is in it may be opened.
    """

    image: str
    path: str | None
    fault: Fault | None = None
    root: str | None = None


def locate_anywhere(text: str, *, allow_urls: bool = False) -> ImageLocation:
    """The location of a path that may be anywhere, as on standard input."""
    if url_scheme(text):
        return locate_url(text, allow_urls=allow_urls)
    if len(text) > MAX_PATH * 3:  # a byte of a URI may take three
        return ImageLocation(display_name(text), None, _TOO_LONG)
    return ImageLocation(display_name(text), parse_path(text))


def locate_url(text: str, *, allow_urls: bool) -> ImageLocation:
    """The location of a URL, which is shown without its credentials."""
    if not allow_urls:
        return ImageLocation(display_path(text), None, _URL_BLOCKED)
    if url_scheme(text) not in SCHEMES:
        return ImageLocation(display_path(text), None, _UNKNOWN_SCHEME)
    if has_credentials(text):
        return ImageLocation(display_path(text), None, _CREDENTIALS)
    if len(text) > MAX_PATH * 3:
        return ImageLocation(display_path(text), None, _TOO_LONG)
    return ImageLocation(display_path(text), text)


def locate_remote(folder: str, text: str) -> ImageLocation:
    """The location of a path in a manifest at a URL, relative to the URL's folder.

    A path outside that folder, or on this machine, is a fault; rows may name whole URLs instead.
    """
    is_normal = not {".", ".."} & set(text.split("/"))
    path = text if is_normal else posixpath.normpath(text)
    if path.startswith(("/", "../", "file:")) or path == ".." or "\0" in path:
        return ImageLocation(display_path(join_url(folder, text)), None, _OUTSIDE_URL)
    if len(path) > MAX_PATH:
        return ImageLocation(display_path(join_url(folder, path)), None, _TOO_LONG)
    return ImageLocation(display_path(join_url(folder, path)), join_url(folder, path))


def locate_local(folder: str, text: str, root: str | None) -> ImageLocation:
    """The location of a path in a local manifest, joined to the manifest's `folder` as typed.

    With a `root` (a real path), a path outside it is a fault: by `..`, as an absolute path, through
    a link, or in the syntax of another operating system.
    """
    if url_scheme(text):
        return locate_url(text, allow_urls=False)
    path = parse_path(text)
    joined = os.path.join(folder, path)  # noqa: PTH118 - Path would drop a leading `./`
    if "\0" in path or (root is not None and _DRIVE_OR_SHARE.match(path)):
        return ImageLocation(display_path(joined), None, OUTSIDE_FOLDER)
    if len(joined) > MAX_PATH:  # characters, each of which has at least one byte
        return ImageLocation(display_path(joined), None, _TOO_LONG)
    if root is not None and not resolves_inside(joined, root):
        return ImageLocation(display_path(joined), None, OUTSIDE_FOLDER)
    return ImageLocation(display_path(joined), joined, root=root)


def outside_fault(path: str, root: str) -> Fault | None:
    """The fault of a path that leads outside `root`, links resolved; None for one inside."""
    return None if resolves_inside(path, root) else OUTSIDE_FOLDER
