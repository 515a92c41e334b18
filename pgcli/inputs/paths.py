"""Paths as rows show them, and the locations of images that rows name."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from pgcli.records import OUTSIDE_FOLDER, Fault
from pgcli.stores.files import parse_path, resolves_inside
from pgcli.stores.urls import join_url, url_fault, url_scheme, without_credentials

_DRIVE_OR_SHARE = re.compile(r"[A-Za-z]:[\\/]|\\\\")

NO_IMAGE = Fault("missing", "The row names no image.")
PATH_TOO_LONG = Fault("missing", "The path is longer than file systems allow.")
_WINDOWS_PATH = Fault(
    "path_not_allowed",
    "The path begins with a Windows drive or share, which this system does not have.",
)
_URL_BLOCKED = Fault("url_blocked", "The row names a URL, and --allow-urls is not set.")
_OUTSIDE_URL = Fault("path_not_allowed", "The path leads outside the folder of the manifest's URL.")
#: Linux's PATH_MAX. The time to resolve the links of a path is quadratic in its length.
MAX_PATH = 4096


def display_path(path: str) -> str:
    """The path as the output writes it: a `file:` URI if it is not UTF-8 or looks like a URI."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _file_uri(path)
    return _file_uri(path) if path.startswith("file:") else without_credentials(path)


def display_name(text: str) -> str:
    """A name that the user or a row gives, as typed if the output can hold it, else as a URI."""
    return text if text.startswith("file:") and text.isascii() else display_path(parse_path(text))


def absolute_source(name: str, folder: str) -> str:
    """A source as the user typed it in the folder, as the same place named from anywhere.

    URLs lose their credentials, and are unchanged otherwise, as is `-`.
    """
    if name == "-" or url_scheme(name):
        return without_credentials(name)
    path = os.path.join(folder, parse_path(name))  # noqa: PTH118 - as is the next line
    return display_path(os.path.normpath(path))


def rebased(name: str, folder: str, base: str) -> str:
    """A source, or a path, that the user typed in `folder`, as one would type it in `base`."""
    path = parse_path(name)
    if folder == base or name == "-" or url_scheme(name) or path.startswith("/"):
        return name
    absolute = os.path.join(folder, path)  # noqa: PTH118
    is_plain = ".." not in path.lstrip("./").split("/")  # else a link may lead elsewhere
    return display_path(os.path.relpath(absolute, base) if is_plain else absolute)


def _file_uri(path: str) -> str:
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair, which is not in any decoded file name
        raw = path.encode("utf-8", "surrogatepass")
    return ("file://" if Path(path).is_absolute() else "file:") + quote_from_bytes(raw)


class ImageLocation(NamedTuple):
    """A row's image: its name in the output, the path or URL to open, and its fault if any.

    With a `root` (a real path), only a file that is in it may be opened.
    """

    image: str
    path: str | None
    fault: Fault | None = None
    root: str | None = None


def locate_anywhere(text: str, *, allow_urls: bool = False, base: str = "") -> ImageLocation:
    """The location of a path that may be anywhere, as on standard input.

    A relative one is opened in the folder `base`; without it in the current one.
    """
    if url_scheme(text):
        return locate_url(text, allow_urls=allow_urls)
    if len(text) > MAX_PATH * 3:  # a byte of a URI may take three
        return ImageLocation(display_name(text), None, PATH_TOO_LONG)
    return ImageLocation(display_name(text), os.path.join(base, parse_path(text)))  # noqa: PTH118


def locate_url(text: str, *, allow_urls: bool) -> ImageLocation:
    """The location of a URL, which is shown without its credentials."""
    fault = url_fault(text) if allow_urls else _URL_BLOCKED
    if fault is None and len(text) > MAX_PATH * 3:
        fault = PATH_TOO_LONG
    return ImageLocation(display_path(text), None if fault else text, fault)


def locate_below(
    folder: str, text: str, root: str | None, *, allow_urls: bool = False, base: str = ""
) -> ImageLocation:
    """The location of a path in a manifest, joined to the manifest's `folder` as typed, or its URL.

    A relative `folder` is opened in `base`; without it in the current one.
    Outside a URL's folder is a fault, rows may name whole URLs instead; and with a `root` (a real
    path) outside it: by `..`, as an absolute path, through a link, or in the syntax of another
    operating system.
    """
    if url_scheme(text):
        return locate_url(text, allow_urls=allow_urls)
    fault, opened = None, ""
    if url_scheme(folder):
        is_normal = not {".", ".."} & set(text.split("/"))
        path = text if is_normal else posixpath.normpath(text)
        joined = opened = join_url(folder, path)
        if path.startswith(("/", "../", "file:")) or path == ".." or "\0" in path:
            fault, joined = _OUTSIDE_URL, join_url(folder, text)
        elif _DRIVE_OR_SHARE.match(path):
            fault = _WINDOWS_PATH
        elif len(path) > MAX_PATH:
            fault = PATH_TOO_LONG
    else:
        path = parse_path(text)
        joined = os.path.join(folder, path)  # noqa: PTH118 - Path would drop a leading `./`
        opened = os.path.join(base, joined)  # noqa: PTH118
        if "\0" in path:
            fault = OUTSIDE_FOLDER
        elif root is not None and _DRIVE_OR_SHARE.match(path):
            fault = _WINDOWS_PATH
        elif len(joined) > MAX_PATH:  # characters, each of which has at least one byte
            fault = PATH_TOO_LONG
        elif root is not None and not resolves_inside(opened, root):
            fault = OUTSIDE_FOLDER
    if fault is not None:
        return ImageLocation(display_path(joined), None, fault)
    return ImageLocation(display_path(joined), opened, None, root)
