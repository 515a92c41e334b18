"""What the user names, as a stream of items: folders, files, globs, manifests, standard input."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import escape, has_magic
from pathlib import Path

from pgcli.errors import NoInputError, UsageError
from pgcli.records import Item
from pgcli.sources import remote_files
from pgcli.sources.dataset_files import dataset_files, dataset_parts, may_have_dataset
from pgcli.sources.file_list import FileList
from pgcli.sources.files import FileSource, group_images, has_reader
from pgcli.sources.folder import FolderSource
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.paths import display_name, display_path, parse_path, url_scheme
from pgcli.sources.patterns import glob_files, is_output
from pgcli.sources.readers import READERS, kind_of
from pgcli.sources.remote_files import RemoteFolder
from pgcli.sources.source_options import IMAGE_ENDINGS, ReadOptions, SourcePart, ending
from pgcli.sources.stdin import StdinSource

__all__ = ["IMAGE_ENDINGS", "ReadOptions", "Source", "open_sources"]

UNNAMED = {"(none)": "without an ending", "(other)": "with odd endings"}
MOST_KINDS = 5  # endings that are named one by one
HEIC = {".heic", ".heif"}

#: What may have more files later.
Changing = FolderSource | FileSource | RemoteFolder


class Source:
    """All that the user named, as one stream of items, numbered from 0.

    `total` is None where standard input takes part; `kinds` counts what was found by ending, and
    `ignored` the files that were left out.
    Each pass reads anew, except for standard input, which is there once.
    """

    def __init__(self, parts: Sequence[SourcePart]):
        self._parts = tuple(parts)
        self._additions = 0  # how often a run that went on found something new
        self.has_prompts = any(part.has_prompts for part in parts)
        self.ignored: Mapping[str, int] = sum((part.ignored for part in parts), Counter())
        self.kinds: Mapping[str, int] = sum((part.kinds for part in parts), Counter())

    @property
    def total(self) -> int | None:
        """How many items there are."""
        totals = [part.total for part in self._parts if part.total is not None]
        return sum(totals) if len(totals) == len(self._parts) else None

    def pin_files(self, lists: Callable[[int], Path], *, is_written: bool = True) -> None:
        """List the files of folders and patterns, so that each keeps its place as more come.

        What is new comes behind all that was there before. `lists` says where the lists of a part
        are, by its number; nothing is written there unless `is_written`. Raises OSError.
        """
        changing = [
            (part, FileList(lists(number), is_written=is_written))
            for number, part in enumerate(self._parts)
            if isinstance(part, Changing)
        ]
        known = max((listing.last for _, listing in changing), default=-1)
        for part, listing in changing:
            part.pin_files(listing, known + 1)
        self._additions = max([0, *(listing.last for _, listing in changing)])

    def __iter__(self) -> Iterator[Item]:
        index = 0
        for number in range(self._additions + 1):
            for part in self._parts:
                if isinstance(part, Changing):
                    found = part.items(index, number)
                else:
                    found = part.items(index) if number == 0 else iter(())
                for item in found:
                    yield item
                    index += 1


def open_sources(sources: Sequence[str], reading: ReadOptions | None = None) -> Source:
    """The sources by the names that the user typed, looked at once so that what is wrong shows now.

    Raises UsageError for a name that cannot be meant, ManifestError for a broken manifest, and
    NoInputError where there is no picture.
    """
    reading = reading or ReadOptions()
    if list(sources).count("-") > 1:
        raise UsageError("standard input (`-`) is named twice", hint="name it once")
    parts = [part for name in sources for part in _parts(name, reading, alone=len(sources) == 1)]
    for part in parts:
        _check_columns(part, reading)
    source = Source(parts)
    if source.total == 0:
        raise NoInputError(
            f"no picture in {', '.join(map(display_name, sources))}", hint=_hint(source.ignored)
        )
    if reading.refuses_prompts and source.has_prompts:
        column = f"its prompt column {reading.prompt_column!r}"
        raise UsageError(
            f"--prompt is given, and the manifest has prompts in {column}",
            hint="leave out --prompt, or name another column with --prompt-column",
        )
    return source


def _parts(name: str, reading: ReadOptions, *, alone: bool) -> Iterator[SourcePart]:
    if name == "-":
        yield StdinSource(reading)
        return
    if url_scheme(name):
        yield from remote_files.expand_url(name, reading, alone=alone)
        return
    path = parse_path(name)
    if os.path.isdir(path):  # noqa: PTH112 - Path raises for a NUL
        folder = FolderSource(
            name, path, alone=alone, allow_outside_root=reading.allow_outside_root
        )
        named = () if folder.total else _shards(path, folder.ignored)
        found = {shard: _file(display_path(shard), shard, reading) for shard in named}
        yield from dataset_parts(found, folder.ignored) if found else (folder,)
    elif os.path.lexists(path):
        yield _file(name, path, reading)
    elif has_magic(path):
        yield from _matched(name, reading)
    else:
        raise UsageError(f"{name} does not exist", hint="check the spelling and the folder")


def _shards(folder: str, ignored: Mapping[str, int]) -> list[str]:
    """The files of a data set in a folder without pictures; none of what runs wrote."""
    below = f"{escape(folder.rstrip('/'))}/**/*"
    found = glob_files(below) if may_have_dataset(ignored) else ()
    files = (path for path in found if os.path.isfile(path))  # noqa: PTH113
    return dataset_files(path for path in files if not is_output(path))


def _file(name: str, path: str, reading: ReadOptions) -> SourcePart:
    """An image file or a manifest, by its ending. Raises UsageError for any other kind, by name."""
    if ending(path) in IMAGE_ENDINGS:
        return FileSource(name, [path])
    if kind_of(path) is not None:
        if not Path(path).is_file():
            hint = "a manifest is read twice; pipe its rows to `-` instead"
            raise UsageError(f"{name} is not a regular file", hint=hint)
        return ManifestSource(name, path, reading)
    hint = f"pictures end in {_listed(IMAGE_ENDINGS)}; manifests and archives in {_listed(READERS)}"
    raise UsageError(f"{name} is neither a picture nor a manifest by its ending", hint=hint)


def _matched(pattern: str, reading: ReadOptions) -> Iterator[SourcePart]:
    """What a glob matches, in order; pictures next to each other as one part."""
    found = glob_files(parse_path(pattern))
    known = [path for path in found if has_reader(path)]
    known = [path for path in known if not os.path.isdir(path)]  # noqa: PTH112
    known = [path for path in known if ending(path) in IMAGE_ENDINGS or not is_output(path)]
    ignored = Counter(ending(path) for path in set(found).difference(known))
    if not known:
        raise NoInputError(f"nothing matches {pattern}", hint=_hint(ignored))
    yield from group_images(
        pattern, known, ignored, lambda path: _file(display_path(path), path, reading)
    )


def _check_columns(part: SourcePart, reading: ReadOptions) -> None:
    if isinstance(part, ManifestSource | StdinSource) or not part.total:
        return
    if wanted := (*reading.keep, *reading.fields):
        message = f"{part.name} has no columns, so there is no {wanted[0]!r}"
        raise UsageError(message, hint="only manifests have columns")
    if reading.requires_prompts:
        raise UsageError(
            f"{part.name} brings no prompts",
            hint='give one: --prompt "what is in the picture?"; a manifest may bring them',
        )
    if reading.choices_column is not None:
        raise UsageError(
            f"{part.name} brings no choices", hint="give them with --choice; only manifests do"
        )


def _hint(ignored: Mapping[str, int]) -> str:
    """What was looked for, and what there was instead, most first."""
    hint = f"pictures end in {_listed(IMAGE_ENDINGS)}; folders are searched with all below them"
    if ignored:
        hint += f"; left out: {', '.join(ending_counts(ignored))}"
    if HEIC & ignored.keys():
        hint += "; HEIC has to become JPEG first: magick mogrify -format jpg *.heic"
    if READERS.keys() & ignored.keys():
        hint += "; to read a manifest, name the file itself"
    return hint


def ending_counts(found: Mapping[str, int]) -> list[str]:
    """File counts by ending, largest first; past MOST_KINDS endings the rest are one entry."""
    by_count = sorted(found.items(), key=lambda kind: (-kind[1], kind[0]))
    counts = [f"{count:,} {UNNAMED.get(kind, kind)}" for kind, count in by_count]
    if len(counts) > MOST_KINDS:
        counts[MOST_KINDS:] = [f"{len(counts) - MOST_KINDS} more endings"]
    return counts


def _listed(endings: Iterable[str]) -> str:
    return ", ".join(sorted(endings))
