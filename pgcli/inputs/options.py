"""How sources are read: the columns of manifests, what is allowed, and which images are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from pgcli.inputs.readers import manifest_ending
from pgcli.records import COLUMNS, EXTRA_COLUMNS
from pgcli.stores import Reader

#: Stands for every column but the image and those whose names the output has already.
ALL = "*"
#: The column that every row has: its file and place in it (`photos.parquet, row 12`), or the path
#: of an image file. A column of this name in a manifest takes precedence.
SOURCE = "source"
#: The columns of prompts in labelled rows, in the order in which training and `eval` read them.
PROMPT_COLUMNS = ("prefix", "prompt")
#: The column of the part of an image that its prompts refer to.
REGION = "region"


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Glob patterns that a name has to match, one of `include` if there are any, and none of
    `exclude`.

    Names are paths relative to the folder that the user named, or ids. `*` stands for any text,
    slashes too; a pattern that ends in a slash is one of all names below that folder.
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
        """Whether no name below the folder is accepted, whatever it is."""
        patterns = [pattern for pattern in self.exclude if pattern.endswith(("*", "/"))]
        return matches(f"{folder}/", patterns)

    def in_table(self, file: str) -> NameFilter | None:
        """The filter of the rows of a manifest or an archive, which may be selected as a whole.

        None if the file is excluded, or only other ones are included.
        """
        if matches(file, self.exclude):
            return None
        if matches(file, self.include):
            return replace(self, include=())
        are_files = bool(self.include) and all(map(manifest_ending, self.include))
        return None if are_files else self

    def names_hidden(self, name: str) -> bool:
        """Whether an included pattern is written for this hidden name: a part begins as it does."""
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
    """Which columns hold what, and what a source may contain.

    `names` selects images by their names. `fields` are the columns that fill prompts, `keep` those
    that the output repeats: `a`, `a:b` for one that the output calls b, `*` for all.
    `optional_fields` are read where they exist. With `repeats_ids` several rows may have the same
    id; with `allows_nulls` a null in `fields` is a value, and not an error of its row. Items have
    prompts of their own with `requires_prompts`; a manifest with prompts is an error with
    `refuses_prompts`, a row with a region with `refuses_regions`. URLs are read with `url_reader`
    and refused without it. With `fixes_types` kept columns have the types of the first generation
    of the input, and what does not fit is an error. Relative names are of the `folder`, without one
    of the current folder. `spool` reads standard input to its end first, so that its items are
    counted. Messages and options call a prompt by `prompt_noun`. `track` is called with the number
    of items that were counted since its last call.
    """

    image_column: str = "image"
    id_column: str = "id"
    prompt_column: str = "prompt"
    prompt_noun: Literal["prompt", "text"] = "prompt"
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
    fixes_types: bool = False
    names: NameFilter = ALL_NAMES
    allow_outside_root: bool = False
    url_reader: Reader | None = None
    folder: str = ""
    spool: bool = False
    track: Callable[[int], object] = field(default=lambda count: None, compare=False, repr=False)


def prompt_columns(options: ReadOptions) -> tuple[str, ...]:
    """The columns that a row may have its prompt in, best first.

    A result file may keep the `prefix` of its input, and its `prompt` is what was asked.
    """
    is_default = options.prompt_column == ReadOptions.prompt_column
    others = PROMPT_COLUMNS if is_default and options.prompt_noun == "prompt" else ()
    return tuple(dict.fromkeys((options.prompt_column, *others)))


class KeptColumn(NamedTuple):
    """A column of the manifest, and its name in the output."""

    source: str
    output: str


def named_columns(keep: Iterable[str]) -> tuple[KeptColumn, ...]:
    """The columns that are named: `a`, or `a:b` for one that the output calls b."""
    pairs = (name.partition(":") for name in keep if name != ALL)
    return tuple(KeptColumn(source, output or source) for source, _, output in pairs)


def needed_columns(options: ReadOptions, kept: Iterable[KeptColumn]) -> set[str]:
    """The columns that a row has to have, of which these are kept. Each has a `SOURCE`."""
    names = {options.image_column, *options.fields, *(column.source for column in kept)}
    names |= {options.choices_column} if options.choices_column is not None else set()
    return names


def kept_columns(keep: Sequence[str], columns: Iterable[str], image: str) -> tuple[KeptColumn, ...]:
    """The columns to keep of a manifest with these `columns`, `image` being that of the images."""
    named = named_columns(keep)
    if ALL not in keep:
        return named
    taken = {image, *COLUMNS, *EXTRA_COLUMNS, *(column.output for column in named)}
    taken |= {column.source for column in named}
    return (*(KeptColumn(name, name) for name in columns if name not in taken), *named)
