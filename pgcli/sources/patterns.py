"""Files that match a glob pattern, in code-point order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import has_magic

from pgcli.sources.paths import parse_path, url_scheme


def glob_files(pattern: str) -> list[str]:
    """The paths that match a pattern, sorted, each once.

    Like `glob.glob`, except that `**` does not follow links to folders: two that lead back up would
    be walked again and again, in every order.
    """
    start = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part]
    # `**/**` matches the same as `**` and would be walked twice
    once = [part for i, part in enumerate(parts) if parts[i : i + 2] != ["**", "**"]]
    return sorted(set(_matches(start, once)))


def expand_source(source: str) -> list[str]:
    """The local paths that a source's name may refer to, except for the output of runs."""
    if url_scheme(source):
        return []
    matches = glob_files(source) if has_magic(source) else ()
    return [parse_path(source), *(path for path in matches if not is_output(path))]


def is_output(path: str) -> bool:
    """Whether a run wrote the file: it has a state folder next to it, or is in one."""
    folder = os.path.dirname(path)  # noqa: PTH120 - Path would drop a leading `./`
    has_state = any(os.path.isdir(f"{name}.pgcli") for name in (path, folder))  # noqa: PTH112
    return has_state or any(part.endswith(".pgcli") for part in folder.split("/"))


def _matches(folder: str, parts: Sequence[str]) -> Iterator[str]:
    if not parts:
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _matches(folder, rest or ["*"])
        for entry in _entries(folder):
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield from _matches(folder + entry.name + "/", parts)
    elif not has_magic(head):
        yield from _match_rest(folder + head, rest)
    else:
        for entry in _entries(folder):
            hidden = entry.name.startswith(".") and not head.startswith(".")
            if not hidden and fnmatchcase(entry.name, head):
                yield from _match_rest(folder + entry.name, rest)


def _match_rest(path: str, rest: Sequence[str]) -> Iterator[str]:
    if rest:
        yield from _matches(path + "/", rest)
    elif os.path.lexists(path):
        yield path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except OSError:  # not a folder, or an unreadable one: nothing in it matches
        return []
