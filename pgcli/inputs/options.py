"""Options of reading: columns of manifests, permissions, and patterns that select images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from pgcli.errors import UsageError
from pgcli.inputs.readers import manifest_ending
from pgcli.records import COLUMNS, EXTRA_COLUMNS
from pgcli.stores import Reader

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
