"""Paths as rows show them, the images that rows name, and the files of folders and patterns.

Folders are walked and patterns expanded without recursion, in code-point order.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from pgcli.inputs.options import NameFilter
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


#: Why a walk does not read an entry: an error of its row, or a reason to skip it.
OUTSIDE, UNREADABLE, LONG = "outside", "unreadable", "long"
LINKED, IS_FOLDER, HIDDEN = "linked", "folder", "hidden"
FAULTS = {
    OUTSIDE: OUTSIDE_FOLDER,
    UNREADABLE: Fault("permission_denied", "No permission to read the folder."),
    LONG: PATH_TOO_LONG,
}


class WalkedFile(NamedTuple):
    """A file by its path relative to the folder, with its size and modification time if known.

    With a `problem` it may not be read. A folder that is not read has a slash at its end.
    """

    relative: str
    size: int | None = None
    mtime_ns: int | None = None
    problem: str | None = None


class _Level(NamedTuple):
    """A folder on the way down: its prefix, whether it is inside the root, its entries to come."""

    prefix: str
    is_inside: bool
    entries: Iterator[os.DirEntry[str]]


def walk_folder(path: str, names: NameFilter, *, allow_outside_root: bool) -> Iterator[WalkedFile]:
    """The files below a folder, each once, in code-point order of their relative paths.

    Hidden files and folders are skipped unless `names` names them, and so are folders that `names`
    excludes. A link to a folder is followed only if the folder is outside the root, this is
    allowed, and it was not walked before. Raises OSError for an unreadable root.
    """
    root, walked = os.path.realpath(path), set[tuple[int, int]]()
    # a stack, not recursion: a folder may be deeper than Python's recursion limit
    levels = [_level(path, "", is_inside=True)]
    while levels:
        prefix, is_inside, entries = levels[-1]
        entry = next(entries, None)
        if entry is None:
            levels.pop()
            continue
        name = prefix + entry.name
        if is_hidden(entry.name) and not names.names_hidden(entry.name):
            yield WalkedFile(name + "/" * _is_folder(entry), problem=HIDDEN)
            continue
        if not _is_folder(entry):
            yield _file(name, entry, None if allow_outside_root else root)
            continue
        if names.excludes_folder(name):
            continue
        is_walked = is_link = entry.is_symlink()
        is_inside = resolves_inside(entry.path, root) if is_link else is_inside
        try:
            if not is_inside:
                status = Path(entry.path).stat()
                key = (status.st_dev, status.st_ino)
                is_walked = not allow_outside_root or key in walked
                walked.add(key)
            if is_walked:
                yield WalkedFile(f"{name}/", problem=LINKED)
            else:
                levels.append(_level(entry.path, f"{name}/", is_inside=is_inside))
        except OSError as problem:
            is_long = problem.errno == errno.ENAMETOOLONG
            yield WalkedFile(f"{name}/", problem=LONG if is_long else UNREADABLE)


def _level(path: str, prefix: str, *, is_inside: bool) -> _Level:
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not is_state(entry)]
    # a folder sorts as its contents will: with the slash that follows its name
    visible.sort(key=lambda entry: entry.name + "/" * _is_folder(entry))
    return _Level(prefix, is_inside, iter(visible))


def _file(name: str, entry: os.DirEntry[str], root: str | None) -> WalkedFile:
    """The file with its status, or the problem of a link that leads out of the root."""
    if root is not None and entry.is_symlink() and not resolves_inside(entry.path, root):
        return WalkedFile(name, problem=OUTSIDE)
    return file_status(entry.path, name)


def file_status(path: str, name: str) -> WalkedFile:
    """The file with its size and modification time if it exists."""
    try:
        status = os.stat(path)  # noqa: PTH116 - Path is slow, and this is called for each file
    except (OSError, ValueError) as error:
        is_long = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
        return WalkedFile(name, problem=LONG if is_long else None)
    is_folder = stat.S_ISDIR(status.st_mode)
    return WalkedFile(name, status.st_size, status.st_mtime_ns, IS_FOLDER if is_folder else None)


def is_state(entry: os.DirEntry[str]) -> bool:
    """Whether the entry is the state folder of a run."""
    return entry.name.endswith(".pgcli") and _is_folder(entry)


def is_hidden(name: str) -> bool:
    """Whether a name is hidden, by the rules of data lakes: `.git`, `_temporary`, not `_day=1`.

    `.` and `..`, which may be parts of keys in a store, are not.
    """
    is_dotted = name.startswith(".") and name not in (".", "..")
    return is_dotted or (name.startswith("_") and "=" not in name)


def without_hidden(
    files: Iterable[WalkedFile], names: NameFilter, *, only_folders: bool = False
) -> Iterator[WalkedFile]:
    """The visible files, and each hidden file, or its folder, with that problem.

    Files that `names` names are visible. With `only_folders`, only folders can be hidden.
    """
    last = ""
    for file in files:
        *folders, name = file.relative.split("/")
        parts = folders if only_folders else [*folders, name]
        number = next(
            (n for n, part in enumerate(parts) if is_hidden(part) and not names.names_hidden(part)),
            None,
        )
        if number is None:
            yield file
        elif (hidden := "/".join(parts[: number + 1]) + "/" * (number < len(folders))) != last:
            last = hidden
            yield WalkedFile(hidden, problem=HIDDEN)


def fixed_part(pattern: str) -> str:
    """The folder below which a pattern matches, up to its last slash, as matches begin."""
    pieces = [piece for piece in pattern.split("/") if piece]
    fixed = next((n for n, piece in enumerate(pieces) if has_magic(piece)), len(pieces) - 1)
    return "/" * pattern.startswith("/") + "".join(f"{piece}/" for piece in pieces[:fixed])


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a cycle of links
        return False


def is_output(path: str) -> bool:
    """Whether a run wrote the file: a state folder is next to it or contains it."""
    folder = os.path.dirname(path)  # noqa: PTH120 - Path would drop a leading `./`
    has_state = any(os.path.isdir(f"{name}.pgcli") for name in (path, folder))  # noqa: PTH112
    return has_state or any(part.endswith(".pgcli") for part in folder.split("/"))


def expand_source(source: str) -> list[str]:
    """The local paths that a source may refer to, without the output of runs."""
    if url_scheme(source):
        return []
    matches = glob_files(source) if has_magic(source) else ()
    return [parse_path(source), *(path for path in matches if not is_output(path))]


class Glob:
    """A pattern of paths, matched name by name; `**` matches any number of visible folders.

    A state is the set of pieces, by number, that the next name may match; `end` is a full match.
    """

    def __init__(self, pattern: str):
        pieces = [piece for piece in pattern.split("/") if piece]
        # `**/**` matches the same as `**`, and at the end it stands for files as well
        pieces = [piece for n, piece in enumerate(pieces) if pieces[n : n + 2] != ["**", "**"]]
        pieces += ["*"] if pieces[-1:] == ["**"] else []
        self.pieces, self.end = [*pieces, ""], len(pieces)  # no name matches the last one
        self.start = {0, 1} if self.pieces[0] == "**" else {0}

    def follow(self, state: set[int], name: str, *, is_link: bool = False) -> set[int]:
        """The state behind one more name of a path; `**` does not follow links."""
        is_hidden, following = name.startswith("."), set()
        for number in state:
            piece = self.pieces[number]
            if piece == "**":
                following |= set() if is_hidden or is_link else {number, number + 1}
            elif fnmatchcase(name, piece) and (piece.startswith(".") or not is_hidden):
                following.add(number + 1)
                if self.pieces[number + 1] == "**":  # which may stand for no folder
                    following.add(number + 2)
        return following

    def matches(self, path: str) -> bool:
        """Whether the pattern matches a path as a whole."""
        state = self.start
        for name in path.split("/"):
            state = self.follow(state, name)
        return self.end in state


def glob_files(pattern: str, base: str = "") -> list[str]:
    """The paths that match a pattern, sorted, each once; relative paths start in the folder `base`.

    Like `glob.glob`, except that `**` does not follow links to folders: two links that lead back up
    would be walked in every order. A folder with a path that is too long is among the paths, with a
    slash at its end.
    """
    paths: set[str] = set()
    pattern = "/" * pattern.startswith("/") + "/".join(filter(None, pattern.split("/")))
    start = fixed_part(pattern)
    glob = Glob(pattern.removeprefix(start))
    folders = [(start, glob.start)] if glob.end else []
    while folders:
        folder, state = folders.pop()
        pieces = [glob.pieces[number] for number in state - {glob.end}]
        for name, is_link, is_folder in _entries(base, folder, pieces, paths):
            following = glob.follow(state, name, is_link=is_link)
            if glob.end in following:
                paths.add(folder + name)
            if following - {glob.end} and is_folder:
                folders.append((f"{folder}{name}/", following))
    return sorted(paths)


def _entries(
    base: str, folder: str, pieces: list[str], paths: set[str]
) -> list[tuple[str, bool, bool]]:
    """The names in a folder that pieces may match, with whether it is a link, and a folder.

    If the path of the folder is too long, it is added to `paths` instead.
    """
    opened = os.path.join(base, folder)  # noqa: PTH118
    if not any(map(has_magic, pieces)):  # they are looked up, `..` too, in a folder of any size
        named = [piece for piece in pieces if os.path.lexists(opened + piece)]
        return [(name, False, os.path.isdir(opened + name)) for name in named]  # noqa: PTH112
    try:
        with os.scandir(opened or ".") as entries:
            return [(entry.name, entry.is_symlink(), _is_folder(entry)) for entry in entries]
    except OSError as problem:  # not a folder, or an unreadable one: nothing in it matches
        if problem.errno == errno.ENAMETOOLONG:
            paths.add(folder)
        return []
