"""Paths as rows show them, the images that rows name, and the files of folders and patterns.

Folders are walked and patterns expanded without recursion, in code-point order.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from pgcli.inputs.options import NameFilter
from pgcli.records import OUTSIDE_FOLDER, Fault
from pgcli.stores.files import parse_path, resolves_inside
from pgcli.stores.urls import join_url, url_fault, url_scheme, without_credentials

NO_IMAGE = Fault("missing", "The row names no image.")
PATH_TOO_LONG = Fault("missing", "The path is longer than file systems allow.")
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
    The folder of a path that may be anywhere, as on standard input, is empty.
    Outside a URL's folder is a fault, rows may name whole URLs instead; and with a `root` (a real
    path) outside it: by `..`, as an absolute path, or through a link.
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
        elif len(path) > MAX_PATH:
            fault = PATH_TOO_LONG
    else:
        path = parse_path(text)
        joined = os.path.join(folder, path)  # noqa: PTH118 - Path would drop a leading `./`
        opened = os.path.join(base, joined)  # noqa: PTH118
        if "\0" in path:
            fault = OUTSIDE_FOLDER
        elif len(joined) > MAX_PATH:  # characters, each of which has at least one byte
            fault = PATH_TOO_LONG
        elif root is not None and not resolves_inside(opened, root):
            fault = OUTSIDE_FOLDER
    if fault is not None:
        return ImageLocation(display_path(joined), None, fault)
    return ImageLocation(display_path(joined), opened, None, root)


#: Why a walk does not read an entry: an error of its row, or a reason to skip it.
OUTSIDE, UNREADABLE, LONG = "outside", "unreadable", "long"
LINKED, HIDDEN = "linked", "hidden"
FAULTS = {
    OUTSIDE: OUTSIDE_FOLDER,
    UNREADABLE: Fault("permission_denied", "No permission to read the folder."),
    LONG: PATH_TOO_LONG,
}


class WalkedFile(NamedTuple):
    """A file by its path relative to the folder, with its size and modification time if known.

    A `problem` says why it must not be read. A folder that is not read has a slash at its end.
    """

    relative: str
    size: int | None = None
    mtime_ns: int | None = None
    problem: str | None = None


class Glob:
    """A pattern of paths: `*` stands for a part of a name, `**` for any number of folders.

    Neither stands for a dot at the beginning of a name. `folders` are the patterns of the folders
    that may hold matches, by depth, up to the first `**`.
    """

    def __init__(self, pattern: str):
        pieces = [piece for piece in pattern.split("/") if piece]
        # `**/**` matches the same as `**`, and at the end it stands for files as well
        pieces = [piece for n, piece in enumerate(pieces) if pieces[n : n + 2] != ["**", "**"]]
        pieces += ["*"] if pieces[-1:] == ["**"] else []
        self.path = _path_pattern(pieces)
        self.is_deep = "**" in pieces
        depth = pieces.index("**") if self.is_deep else len(pieces) - 1
        self.folders = [_path_pattern(pieces[: n + 1]) for n in range(depth)]

    def enters(self, folder: str) -> bool:
        """Whether paths in the folder may match."""
        depth = folder.count("/")
        return self.is_deep if depth >= len(self.folders) else bool(self.folders[depth](folder))


def _path_pattern(pieces: Sequence[str]) -> Callable[[str], object]:
    """The function that matches a path as a whole."""
    texts = []
    for piece in pieces:
        if piece == "**":
            texts.append(r"(?:(?!\.)[^/]+/)*")
            continue
        tokens = re.findall(r"\[!?\]?[^\]]*\]|.", piece, re.DOTALL)
        text = "" if piece.startswith(".") else r"(?!\.)"
        for token in tokens:
            if token in ("*", "?"):
                text += "[^/]*" if token == "*" else "[^/]"
            elif len(token) > 1:
                inner = re.sub(r"([\\\[\]&~|^])", r"\\\1", token[1:-1].removeprefix("!"))
                text += f"[{'^' * (token[1] == '!')}{inner}]"
            else:
                text += re.escape(token)
        texts.append(f"{text}/")
    return re.compile("".join(texts).removesuffix("/"), re.DOTALL).fullmatch


def walk_folder(
    path: str, names: NameFilter, *, allow_outside_root: bool, glob: Glob | None = None
) -> Iterator[WalkedFile]:
    """The files below a folder, each once, in code-point order of their relative paths.

    Hidden files and folders are skipped unless `names` names them, and so are folders that `names`
    excludes. A link to a folder is followed only if the folder is outside the root, this is
    allowed, and it was not walked before. With a `glob`, only the files that it matches, hidden
    ones too. Raises OSError for an unreadable root.
    """
    root, walked = os.path.realpath(path), set[tuple[int, int]]()
    # a stack, not recursion: a folder may be deeper than Python's recursion limit
    levels = [("", True, _sorted_entries(path))]
    while levels:
        prefix, is_inside, entries = levels[-1]
        entry = next(entries, None)
        if entry is None:
            levels.pop()
            continue
        name, is_folder = prefix + entry.name, _is_folder(entry)
        if glob is not None and not (glob.enters if is_folder else glob.path)(name):
            continue
        if is_hidden(entry.name) and not names.names_hidden(entry.name) and (is_folder or not glob):
            yield WalkedFile(name + "/" * is_folder, problem=HIDDEN)
            continue
        if not is_folder:
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
                levels.append((f"{name}/", is_inside, _sorted_entries(entry.path)))
        except OSError as problem:
            is_long = problem.errno == errno.ENAMETOOLONG
            yield WalkedFile(f"{name}/", problem=LONG if is_long else UNREADABLE)


def _sorted_entries(path: str) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder, without the state of runs; a folder sorts as its contents will."""
    with os.scandir(path or ".") as entries:
        visible = [e for e in entries if not (e.name.endswith(".pgcli") and _is_folder(e))]
    visible.sort(key=lambda entry: entry.name + "/" * _is_folder(entry))
    return iter(visible)


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
    return WalkedFile(name, status.st_size, status.st_mtime_ns)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a cycle of links
        return False


def is_hidden(name: str) -> bool:
    """Whether a name is hidden, by the rules of data lakes: `.git`, `_temporary`, not `_day=1`.

    `.` and `..`, which may be parts of keys in a store, are not.
    """
    is_dotted = name.startswith(".") and name not in (".", "..")
    return is_dotted or (name.startswith("_") and "=" not in name)


def without_hidden(
    files: Iterable[WalkedFile], names: NameFilter, glob: Glob | None = None
) -> Iterator[WalkedFile]:
    """The files that `walk_folder` gives of a folder with these files, which a store lists."""
    last = ""
    for file in files:
        if glob is not None and not glob.path(file.relative):
            continue
        *folders, name = file.relative.split("/")
        parts = [*folders, name] if glob is None else folders
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
    """The folder below which a pattern of paths or of a URL matches, up to its last slash."""
    match = re.match(r"(?:[^/:]+://[^/]*/)?(?:[^*?\[]*/)?", pattern)
    return match[0] if match else ""


def glob_files(pattern: str, base: str = "") -> Iterator[WalkedFile]:
    """The files that a pattern matches, by their paths behind its fixed part.

    Relative paths start in the folder `base`. Unreadable folders that may hold matches are among
    them, with a slash at their ends.
    """
    fixed = fixed_part(pattern)
    relative = pattern.removeprefix(fixed)
    folder = os.path.join(base, fixed)  # noqa: PTH118
    if os.path.isdir(folder or "."):  # noqa: PTH112
        names = NameFilter(include=(relative,))
        yield from walk_folder(folder, names, allow_outside_root=True, glob=Glob(relative))


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
    paths = [fixed_part(source) + file.relative for file in matches]
    return [parse_path(source), *(path for path in paths if not is_output(path))]
