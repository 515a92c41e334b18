"""Records of an export: an image with its rows, the options, the counts, and the format."""

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
    """An image with its answered rows.

    `number` counts from 1. `image` is the image's name outside of the export; `name` is the unique
    relative path of its file in the export, and `stem` the path without a suffix. `path` is the
    image's file, or None for bytes and URLs. `read` returns its bytes or raises `ImageError`.
    `is_address` is true if `image` is an absolute URL.
    """

    number: int
    image: str
    rows: tuple[Row, ...]
    name: str = ""
    stem: str = ""
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
    """The counts of written and skipped images, boxes and texts.

    `boxes_without_mask` are rectangles among polygons. `missing` images are unreadable, `copied`
    ones could not be linked, the target tool cannot read `unsupported` ones, EXIF rotates `rotated`
    ones. `kept` texts existed before, `unnamed` ones have no free file name. `renamed` counts the
    images and texts with another name than their id, `renamed_examples` has the first ones.
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
        """Count an image or text with another name, because its own is taken or not allowed."""
        self.renamed += 1
        if len(self.renamed_examples) < MAX_NAMES:
            self.renamed_examples.append(f"{name} is {new_name}")


@dataclass(frozen=True)
class Export:
    """The options, statistics and counts of an export.

    `labels` maps every label to its number from 0.
    """

    options: ExportOptions
    stats: RowStats
    labels: Mapping[str, int]
    counts: ExportCounts = field(default_factory=ExportCounts)

    @property
    def prompt(self) -> str | None:
        """The only prompt of the rows, or of the rows with boxes; None if they have several."""
        prompts = self.stats.box_prompts if self.stats.has_boxes else self.stats.prompts
        only = next(iter(prompts)) if len(prompts) == 1 else None
        return only if self.options.only_prompt is None else self.options.only_prompt


def without_leading_dot(part: str, is_folder: bool) -> str:
    """The name with an underscore before a leading dot, for tools that skip hidden files."""
    return f"_{part}" if part.startswith(".") else part


#: The options that apply to formats that name them.
FORMAT_OPTIONS = frozenset("label label_file store_images image_prefix prepend append".split())


@dataclass(frozen=True)
class ExportFormat:
    """A format: its writer and its requirements.

    `write` writes the file or fills the new folder; with `is_merged`, it adds texts to any folder.
    `needs_boxes` is true for formats of boxes only. An image may have at most one answer
    with `max_one` "answers", and one text without boxes with "texts". `reads_images` is true if the
    image files are needed. With `unique_stems`, names differ without their suffixes. The format
    adds files with `suffixes` to the folders of images. `sanitize_name` changes the name of a
    folder or file that the tool would misread. With `keeps_types`, kept columns of Parquet files
    keep their types; with `writes_paths`, image paths are relative to their folder. `options` are
    the FORMAT_OPTIONS that apply.
    """

    write: Callable[[Path, Iterable[ExportEntry], Export], None]
    is_folder: bool = False
    is_merged: bool = False
    needs_boxes: bool = False
    max_one: Literal["answers", "texts"] | None = None
    reads_images: bool = False
    unique_stems: bool = False
    keeps_types: bool = False
    writes_paths: bool = False
    suffixes: frozenset[str] = frozenset()
    sanitize_name: Callable[[str, bool], str] | None = None
    options: frozenset[str] = frozenset()

    @property
    def unused(self) -> frozenset[str]:
        """The options that do not apply."""
        return FORMAT_OPTIONS - self.options

    def applied(self, options: ExportOptions) -> ExportOptions:
        """The options, with defaults in place of inapplicable ones."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(options)}
        return replace(options, **{name: defaults[name] for name in defaults.keys() & self.unused})
