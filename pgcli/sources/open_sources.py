"""Opens the sources that the user names: folders, files, globs, manifests, URLs, standard input."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from glob import escape, has_magic
from pathlib import Path

from pgcli.errors import NoInputError, UsageError
from pgcli.sources import remote_files
from pgcli.sources.dataset_files import (
    dataset_files,
    dataset_parts,
    may_have_dataset,
    select_files,
)
from pgcli.sources.endings import IMAGE_ENDINGS, ending
from pgcli.sources.folder import FolderSource
from pgcli.sources.image_files import group_images, is_supported_file, one_image
from pgcli.sources.input_hints import no_input_hint, supported_files_hint
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.paths import display_name, display_path, parse_path, url_scheme
from pgcli.sources.patterns import glob_files, is_output
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers import manifest_ending
from pgcli.sources.source import Source
from pgcli.sources.source_part import SourcePart
from pgcli.sources.stdin import StdinSource

PATTERNS_HINT = (
    "patterns are compared with whole relative paths or ids, in which * stands for any text"
)


def open_sources(sources: Sequence[str], options: ReadOptions | None = None) -> Source:
    """The sources with the names that the user typed, scanned once so that errors show now.

    Raises UsageError for a name that is not a source, ManifestError for a broken manifest, and
    NoInputError if there is no image.
    """
    options = options or ReadOptions()
    if list(sources).count("-") > 1:
        raise UsageError("standard input (`-`) is named twice", hint="name it once")
    parts = [part for name in sources for part in _parts(name, options, alone=len(sources) == 1)]
    for part in parts:
        check_columns(part, options)
    source = Source(parts)
    if source.total == 0:
        names = ", ".join(map(display_name, sources))
        if any(part.has_excluded for part in parts):
            raise NoInputError(
                f"--include and --exclude leave no image of {names}", hint=PATTERNS_HINT
            )
        if all(isinstance(part, ManifestSource) for part in parts):
            have = "has" if len(parts) == 1 else "have"
            raise NoInputError(
                f"{names} {have} no rows", hint="a manifest has a row for each image"
            )
        raise NoInputError(f"no image in {names}", hint=no_input_hint(source.ignored))
    if options.refuses_prompts and source.has_prompts:
        column = f"its prompt column {options.prompt_column!r}"
        raise UsageError(
            f"--prompt is given, and the manifest has prompts in {column}",
            hint="leave out --prompt, or name another column with --prompt-column",
        )
    return source


def _parts(name: str, options: ReadOptions, *, alone: bool) -> Iterator[SourcePart]:
    if name == "-":
        yield StdinSource(options)
        return
    if url_scheme(name):
        yield from remote_files.expand_url(name, options, alone=alone)
        return
    path = parse_path(name)
    if os.path.isdir(path):  # noqa: PTH112 - Path raises for a NUL
        yield from _folder(name, path, options, alone=alone)
    elif os.path.lexists(path):
        yield _file(name, path, options)
    elif has_magic(path):
        yield from _matches(name, options)
    else:
        raise UsageError(f"{name} does not exist", hint="check the spelling and the folder")


def _folder(name: str, path: str, options: ReadOptions, *, alone: bool) -> Iterator[SourcePart]:
    """A folder's images, or the files of the data set that it holds instead."""
    folder = FolderSource(name, path, options, alone=alone)
    has_images = folder.total or folder.has_excluded
    found = [] if has_images else _dataset(path, folder.ignored)
    files = {os.path.relpath(file, path): file for file in found}
    folder.has_excluded |= bool(files)
    parts = {}
    for relative, names in select_files(files, options.names).items():
        file = files[relative]
        parts[file] = _file(display_path(file), file, replace(options, names=names))
    yield from dataset_parts(parts, folder.ignored) if parts else (folder,)


def _dataset(folder: str, ignored: Mapping[str, int]) -> list[str]:
    """The files of a data set in a folder without images, except for the output of runs."""
    below = f"{escape(folder.rstrip('/'))}/**/*"
    found = glob_files(below) if may_have_dataset(ignored) else ()
    files = (path for path in found if os.path.isfile(path))  # noqa: PTH113
    return dataset_files(path for path in files if not is_output(path))


def _file(name: str, path: str, options: ReadOptions) -> SourcePart:
    """An image file or a manifest, by its ending. Raises UsageError for other files."""
    if ending(path) in IMAGE_ENDINGS:
        return one_image(name, path, options.names)
    if manifest_ending(path) is not None:
        if not Path(path).is_file():
            hint = "a manifest is read twice; pipe its rows to `-` instead"
            raise UsageError(f"{name} is not a regular file", hint=hint)
        return ManifestSource(name, path, options)
    message = f"{name} is neither an image nor a manifest by its ending"
    raise UsageError(message, hint=supported_files_hint())


def _matches(pattern: str, options: ReadOptions) -> Iterator[SourcePart]:
    """What a glob pattern matches, in order; consecutive images as one part."""
    found = glob_files(parse_path(pattern))
    known = [path for path in found if is_supported_file(path)]
    known = [path for path in known if not os.path.isdir(path)]  # noqa: PTH112
    known = [path for path in known if ending(path) in IMAGE_ENDINGS or not is_output(path)]
    ignored = Counter(ending(path) for path in set(found).difference(known))
    if not known:
        raise NoInputError(f"nothing matches {pattern}", hint=no_input_hint(ignored))

    def open_file(path: str) -> SourcePart:
        return _file(display_path(path), path, options)

    yield from group_images(pattern, known, ignored, options.names, open_file)


def check_columns(part: SourcePart, options: ReadOptions) -> None:
    """Raise UsageError if images without a manifest are to have columns."""
    if isinstance(part, ManifestSource | StdinSource) or not part.total:
        return
    if columns := (*options.keep, *options.fields):
        message = f"{part.name} has no columns, so there is no {columns[0]!r}"
        raise UsageError(message, hint="only manifests have columns")
    if options.requires_prompts and not part.has_prompts:
        raise UsageError(
            f"{part.name} has no prompts",
            hint='give one: --prompt "what is in the image?"; a manifest may have them',
        )
    if options.choices_column is not None:
        raise UsageError(
            f"{part.name} has no choices", hint="give them with --choice; only manifests have them"
        )
