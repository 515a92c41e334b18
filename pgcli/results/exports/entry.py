"""Records of an export: an image with its rows, what is exported, the counts, and a format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pgcli.output.reader import Row
from pgcli.records import BOX_TASKS, Box, Mask
from pgcli.results.exports.rows import RowStats, row_boxes
from pgcli.results.images import MissingImages
from pgcli.results.options import ExportOptions
from pgcli.wording import MAX_NAMES


@dataclass(frozen=True, slots=True)
class ExportEntry:
    """An image with its rows, none of which is an error.

    `number` counts from 1 in the order of the rows. `image` is the image's name outside of the
    export; `name` is its unique relative path within, `stem` with a suffix, and `own_name` the path
    it has if no other image conflicts. `path` is the image's file, or None for bytes and addresses.
    `read` returns its bytes or raises `ImageError`. `is_address` is true if `image` is an absolute
    address.
    """

    number: int
    image: str
    rows: tuple[Row, ...]
    name: str = ""
    stem: str = ""
    own_name: str = ""
    path: str | None = None
    read: Callable[[], bytes] = bytes
    is_address: bool = False

    @property
    def width(self) -> int:
        return int(self.rows[0]["width"])

    @property
    def height(self) -> int:
        return int(self.rows[0]["height"])

    @property
    def texts(self) -> list[str]:
        """The answers of tasks without boxes."""
        return [row["answer"] or "" for row in self.rows if row["task"] not in BOX_TASKS]

    def boxes(self) -> Iterator[tuple[Box, Mask | None]]:
        """The boxes of all rows with their masks, in their order."""
        for row in self.rows:
            yield from row_boxes(row)


@dataclass
class ExportCounts:
    """What an export wrote and what it skipped.

    `boxes_without_mask` are written as rectangles where others are polygons. `missing` images could
    not be read, `copied` ones could not be linked, `unsupported` ones are not read by the target
    tool, `rotated` ones were stored with another EXIF orientation. `kept` texts existed before,
    `unnamed` ones have no free file name. `renamed` counts images and texts under another name than
    their own, `renamed_examples` are the first.
    """

    images: int = 0
    boxes: int = 0
    captions: int = 0
    boxes_without_mask: int = 0
    missing: MissingImages = field(default_factory=MissingImages)
    unsupported: int = 0
    copied: int = 0
    rotated: int = 0
    kept: int = 0
    unnamed: int = 0
    renamed: int = 0
    renamed_examples: list[str] = field(default_factory=list)

    def add_renamed(self, name: str, new_name: str) -> None:
        """Count an image or text whose own name is taken or would be misread."""
        self.renamed += 1
        if len(self.renamed_examples) < MAX_NAMES:
            self.renamed_examples.append(f"{name} is {new_name}")


@dataclass(frozen=True)
class Export:
    """What a format writes: the options, what the rows have in common, and what was written.

    `labels` maps every label to its number from 0.
    """

    options: ExportOptions
    stats: RowStats
    labels: Mapping[str, int]
    counts: ExportCounts = field(default_factory=ExportCounts)

    @property
    def prompt(self) -> str | None:
        """The only prompt of the rows, or of those of boxes; None if they have several."""
        prompts = self.stats.box_prompts if self.stats.has_boxes else self.stats.prompts
        only = next(iter(prompts)) if len(prompts) == 1 else None
        return only if self.options.only_prompt is None else self.options.only_prompt


def keep_name(part: str, is_folder: bool) -> str:
    """The name unchanged, for tools that read any name."""
    return part


def without_leading_dot(part: str, is_folder: bool) -> str:
    """The name with an underscore before a leading dot, for tools that skip hidden files."""
    return f"_{part}" if part.startswith(".") else part


#: The options that apply to formats that name them.
FORMAT_OPTIONS = frozenset("label label_file store_images image_prefix prepend append".split())


@dataclass(frozen=True)
class ExportFormat:
    """A format: its writer, and what it requires of the rows.

    `write` writes the file or fills the new folder; with `is_merged`, it adds to existing files.
    `needs_boxes` is true for formats of boxes only. `max_one` names what an image may have only one
    of: an answer, or a text without boxes. `reads_images` is true if the image files are needed.
    With `unique_stems`, names must differ without their suffixes. `suffixes` are those of the files
    that the format adds to folders of images. `sanitize_name` makes a folder's or file's name one
    that the tool reads; `suffix_aliases` replaces image suffixes that it does not know. With
    `has_label_folders`, images with a label of `classify` are in the folder of that label. With
    `keeps_types`, kept columns of Parquet files have cells of their types, and with `writes_paths`
    those of images are relative to their folder. `options` are those of FORMAT_OPTIONS that apply.
    """

    write: Callable[[Path, Iterable[ExportEntry], Export], None]
    is_folder: bool = False
    is_merged: bool = False
    needs_boxes: bool = False
    max_one: Literal["answers", "texts"] | None = None
    reads_images: bool = False
    unique_stems: bool = False
    has_label_folders: bool = False
    keeps_types: bool = False
    writes_paths: bool = False
    suffixes: frozenset[str] = frozenset()
    sanitize_name: Callable[[str, bool], str] = keep_name
    suffix_aliases: Mapping[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()

    @property
    def unused(self) -> frozenset[str]:
        """The names of options that have no effect on the format."""
        return FORMAT_OPTIONS - self.options

    def applied(self, options: ExportOptions) -> ExportOptions:
        """The options, with the defaults of those that have no effect on the format."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(options)}
        return replace(options, **{name: defaults[name] for name in defaults.keys() & self.unused})
