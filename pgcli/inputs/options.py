"""Options of reading, the kinds of files by their endings, and the rows that tables give."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple

from pgcli import registry
from pgcli.errors import ManifestError, UsageError
from pgcli.records import COLUMNS, EXTRA_COLUMNS, Fault
from pgcli.stores import Reader
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_path
from pgcli.text import LFS_HEAD_BYTES, LFS_HINT, LFS_MESSAGE, is_lfs_pointer

IMAGE_ENDINGS = frozenset(
    "." + ending
    for ending in "jpg jpeg jpe jfif png webp gif bmp tif tiff avif ppm pgm pbm pnm".split()
)
#: Keys of counts: files without an ending, with an unusual ending, and with a hidden name.
NO_ENDING, OTHER_ENDING, UNDERSCORE = "(none)", "(other)", "(_)"
#: Longer endings are counted together, so that odd file names do not fill the summary.
MAX_ENDING_LENGTH = 12
UNNAMED = {
    NO_ENDING: "without an extension",
    OTHER_ENDING: "with other endings",
    UNDERSCORE: "beginning with _",
}
MAX_LISTED_ENDINGS = 5
HEIC = {".heic", ".heif"}


class InputFile(NamedTuple):
    """A file by its path, or by its URL, which `url_reader` reads.

    `name` is that in messages. Of a local file, `size` bytes are read: others may append to it. A
    relative path is one of the folder `base`, without one of the current folder.
    """

    location: str
    name: str
    url_reader: Reader | None = None
    size: int = sys.maxsize
    base: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str:
        """The path, or the path in the URL; its ending names the format."""
        return self.location if self.url_reader is None else url_path(self.location)

    @property
    def local_path(self) -> str:
        """The path at which a local file is opened."""
        return os.path.join(self.base, self.location)  # noqa: PTH118

    def open(self) -> BinaryIO:
        """The file, opened for reading, seekable. Raises OSError."""
        if self.url_reader is None:
            return open_regular(self.local_path)
        return self.url_reader.open(self.location)


class ManifestRow(NamedTuple):
    """One row: its position for messages (`m.jsonl, line 3`), its values, and its fault if any.

    An image is a path or URL as text, bytes, or `{bytes, path}`; with a `span` it is those bytes
    (offset, size) of the table's file itself, which are not read here.
    """

    position: str
    values: Mapping[str, Any]
    fault: Fault | None = None
    span: tuple[int, int] | None = None


class Mark(NamedTuple):
    """Where a row begins: the offset in its file, and the number of lines or members before it."""

    offset: int = 0
    number: int = 0


START = Mark()


def manifest_ending(name: str) -> str | None:
    """The ending of manifests that a file name has; None for a file that is not a manifest."""
    last = PurePosixPath(name).name.lower()
    endings = registry.names("manifests")
    return next((end for end in endings if last.endswith(end) and last != end), None)


def refuse_lfs_pointer(file: InputFile) -> None:
    """Raise ManifestError if the file is a pointer of Git LFS."""
    with suppress(OSError), file.open() as opened:
        if is_lfs_pointer(opened.read(LFS_HEAD_BYTES)):
            raise ManifestError(f"{file.name} {LFS_MESSAGE}", hint=LFS_HINT)


def error_text(problem: Any) -> str:
    """The text of an OSError, the system's if it has one."""
    return problem.strerror or str(problem)


def ending(name: str) -> str:
    """The lower-case ending with its dot, NO_ENDING, or OTHER_ENDING for an unusual one."""
    last = name.rstrip("/").rpartition("/")[2]
    dot = last.rfind(".")
    if not 0 < dot < len(last) - 1:
        return NO_ENDING
    suffix = last[dot:].lower()
    return suffix if len(suffix) <= MAX_ENDING_LENGTH and suffix.isascii() else OTHER_ENDING


def supported_files_hint() -> str:
    """The supported endings."""
    return f"{images_hint()}; manifests and archives in {_listed(registry.names('manifests'))}"


def no_input_hint(ignored: Mapping[str, int]) -> str:
    """The supported endings, and the skipped files, most frequent first."""
    hint = f"{images_hint()}; folders are searched recursively"
    if ignored:
        hint += f"; skipped: {', '.join(describe_endings(ignored))}"
    if HEIC & ignored.keys():
        hint += "; convert HEIC to JPEG first: magick mogrify -format jpg *.heic"
    if UNDERSCORE in ignored:
        hint += "; names that begin with _ are read if a pattern names them: <--include=> '_*'"
    if not ignored.keys().isdisjoint(registry.names("manifests")):
        hint += "; to read a manifest, name the file itself"
    return hint


def describe_endings(counts: Mapping[str, int]) -> list[str]:
    """File counts by ending, largest first; past MAX_LISTED_ENDINGS the rest are one entry."""
    by_count = sorted(counts.items(), key=lambda kind: (-kind[1], kind[0]))
    texts = [f"{count:,} {UNNAMED.get(kind, kind)}" for kind, count in by_count]
    remaining = len(texts) - MAX_LISTED_ENDINGS
    if remaining > 0:
        texts[MAX_LISTED_ENDINGS:] = [f"{remaining} more extension{'s' * (remaining > 1)}"]
    return texts


def images_hint() -> str:
    """The endings of images."""
    return f"images end in {_listed(IMAGE_ENDINGS)}"


def _listed(endings: Iterable[str]) -> str:
    return ", ".join(sorted(endings))


# --- options

#: All columns except for the image and names that the output already has.
ALL = "*"
#: The columns of prompts in labelled rows, in the order in which training and `eval` read them.
PROMPT_COLUMNS = ("prefix", "prompt")
#: The column of the part of an image that its prompts refer to.
REGION = "region"


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Glob patterns: a name must match one of `include`, if any, and none of `exclude`.

    Names are paths relative to the source's folder, or ids. `*` also matches slashes; a pattern
    that ends in a slash matches everything in that folder.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def accepts(self, name: str) -> bool:
        """Whether an image of this name is read."""
        is_included = not self.include or matches(name, self.include)
        return is_included and not matches(name, self.exclude)

    def excludes_folder(self, folder: str) -> bool:
        """Whether the filter excludes every name in the folder."""
        patterns = [pattern for pattern in self.exclude if pattern.endswith(("*", "/"))]
        return matches(f"{folder}/", patterns)

    def in_table(self, file: str) -> NameFilter | None:
        """The filter for the rows of a manifest or archive, which patterns may select as a whole.

        None if the file is excluded, or only other files are included.
        """
        if matches(file, self.exclude):
            return None
        if matches(file, self.include):
            return replace(self, include=())
        are_files = bool(self.include) and all(map(manifest_ending, self.include))
        return None if are_files else self

    def names_hidden(self, name: str) -> bool:
        """Whether an included pattern has a part that matches this hidden name explicitly."""
        return any(
            part[:1] == name[:1] and fnmatchcase(name, part)
            for pattern in self.include
            for part in pattern.split("/")
        )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether the name matches one of the patterns."""
    return any(
        fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern)
        for pattern in patterns
    )


ALL_NAMES = NameFilter()


@dataclass(frozen=True)
class ReadOptions:
    """The roles of columns, and the permitted content of sources.

    `names` selects images by their names. `fields` are the columns that fill prompts, `keep` the
    columns that are copied to the output: `a`, `a:b` to rename, `*` for all. `optional_fields` are
    read if they exist. With `repeats_ids`, rows may share an id; with `allows_nulls`, `fields` may
    be null. Items need their own prompts with `requires_prompts`; `refuses_prompts` refuses a
    manifest with prompts, `refuses_regions` a row with a region. Without `url_reader`, URLs are
    refused. Relative names are relative to `folder`, or to the current folder. `spool` reads
    standard input to its end first, to count its items. Messages call a prompt `prompt_noun`, and
    name the options that choose columns if `has_column_options`. `track` is called with the number
    of items counted since its last call.
    """

    image_column: str = "image"
    id_column: str = "id"
    prompt_column: str = "prompt"
    prompt_noun: Literal["prompt", "text"] = "prompt"
    has_column_options: bool = True
    keep: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    optional_fields: tuple[str, ...] = ()
    repeats_ids: bool = False
    allows_nulls: bool = False
    requires_prompts: bool = False
    refuses_prompts: bool = False
    choices_column: str | None = None
    refuses_regions: bool = False
    null_separated: bool = False
    names: NameFilter = ALL_NAMES
    allow_outside_root: bool = False
    url_reader: Reader | None = None
    folder: str = ""
    spool: bool = False
    track: Callable[[int], object] = field(default=lambda count: None, compare=False, repr=False)


def prompt_columns(options: ReadOptions) -> tuple[str, ...]:
    """The columns that may contain a row's prompt, in order of preference."""
    is_default = options.prompt_column == ReadOptions.prompt_column
    others = PROMPT_COLUMNS if is_default and options.prompt_noun == "prompt" else ()
    return tuple(dict.fromkeys((options.prompt_column, *others)))


class KeptColumn(NamedTuple):
    """A column of the manifest, and its name in the output."""

    source: str
    output: str


def named_columns(keep: Iterable[str]) -> tuple[KeptColumn, ...]:
    """The named columns: `a`, or `a:b` to rename. Raises UsageError for two with one name."""
    pairs = (name.partition(":") for name in keep if name != ALL)
    columns = dict.fromkeys(KeptColumn(source, output or source) for source, _, output in pairs)
    sources: dict[str, str] = {}
    for source, output in columns:
        if (first := sources.setdefault(output, source)) != source:
            raise UsageError(
                f"<--keep=> gives the columns {first!r} and {source!r} one name: {output!r}",
                hint=f"rename one of them: <--keep {source}:NAME>",
            )
    return tuple(columns)


def needed_columns(options: ReadOptions, kept: Iterable[KeptColumn]) -> set[str]:
    """The columns that a row must have, with these kept columns."""
    names = {options.image_column, *options.fields, *(column.source for column in kept)}
    names |= {options.choices_column} if options.choices_column is not None else set()
    return names


def kept_columns(keep: Sequence[str], columns: Iterable[str], image: str) -> tuple[KeptColumn, ...]:
    """The columns to keep of a manifest with these `columns` and the image column `image`."""
    named = named_columns(keep)
    if ALL not in keep:
        return named
    taken = {image, *COLUMNS, *EXTRA_COLUMNS, *(column.output for column in named)}
    taken |= {column.source for column in named}
    return (*(KeptColumn(name, name) for name in columns if name not in taken), *named)
