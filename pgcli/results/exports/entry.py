"""Records of an export: an image with its rows, the options, the counts, and a format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pgcli.records import BOX_TASKS, Rle
from pgcli.results.missing_images import MissingImages

Row = Mapping[str, Any]
#: How images are stored in an export that is a folder.
StoreImages = Literal["link", "copy", "none"]

MAX_EXAMPLES = 5  # renamed files that a message lists


class ExportBox(NamedTuple):
    """A box: label, left, top, width and height in pixels, score, mask if it was decoded, and
    confidence if it is known.
    """

    label: str
    left: float
    top: float
    width: float
    height: float
    score: float | None
    mask: Rle | None
    confidence: float | None = None


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
    name: str
    stem: str
    own_name: str
    path: str | None
    read: Callable[[], bytes]
    rows: tuple[Row, ...]
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

    def boxes(self) -> Iterator[ExportBox]:
        """The boxes of all rows, in their order."""
        for row in self.rows:
            yield from row_boxes(row)


def row_boxes(row: Row) -> Iterator[ExportBox]:
    """A row's boxes, clipped to the image, each with its mask if that was decoded.

    A box without an area in the image, as other tools may write it, is skipped.
    """
    masks = row.get("masks") or []
    for number, box in enumerate(row["boxes"]):
        rle = masks[number]["rle"] if number < len(masks) and masks[number] else None
        mask = rle and Rle((rle["size"][0], rle["size"][1]), rle["counts"])
        left, right = (min(max(box[name], 0), row["width"]) for name in ("xmin", "xmax"))
        top, bottom = (min(max(box[name], 0), row["height"]) for name in ("ymin", "ymax"))
        # corners have six digits; further digits of a difference are float rounding
        width, height = round(right - left, 9), round(bottom - top, 9)
        if width > 0 and height > 0:
            numbers = (left, top, width, height, box.get("score"))
            yield ExportBox(box["label"], *numbers, mask, box.get("confidence"))


@dataclass
class ExportCounts:
    """What an export wrote and what it skipped.

    `boxes_without_mask` are written as rectangles where others are polygons; `boxes_outside` have
    no area in their image. `missing` images could not be read, `copied` ones could not be linked,
    `unsupported` ones are not read by the target tool, `rotated` ones were stored with another EXIF
    orientation. `kept` texts existed before, `unnamed` ones have no free file name. `renamed`
    counts images and texts under another name than their own, `renamed_examples` are the first.
    """

    images: int = 0
    boxes: int = 0
    captions: int = 0
    boxes_without_mask: int = 0
    missing: MissingImages = field(default_factory=MissingImages)
    boxes_outside: int = 0
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
        if len(self.renamed_examples) < MAX_EXAMPLES:
            self.renamed_examples.append(f"{name} is {new_name}")


@dataclass(frozen=True)
class ExportSettings:
    """The options of an export, and what all rows have in common.

    `prompt` is the only prompt of the rows, None if they have several.
    `labels` maps every label to its index from 0; `columns` are the rows'. `has_boxes` is true if
    any row is of a task with boxes, `has_masks` if any box has a mask, `has_labels_alone` if the
    rows are of `classify`. `image_prefix` precedes an image's address; `prepend` and `append` are
    the words around each text, of which `overwrite` replaces existing ones.
    """

    prompt: str | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    has_boxes: bool = False
    has_masks: bool = False
    has_labels_alone: bool = False
    images: StoreImages = "link"
    image_prefix: str = ""
    prepend: str = ""
    append: str = ""
    overwrite: bool = False
    csv_raw: bool = False
    counts: ExportCounts = field(default_factory=ExportCounts)


def keep_name(part: str, is_folder: bool) -> str:
    """The name unchanged, for tools that read any name."""
    return part


def without_leading_dot(part: str, is_folder: bool) -> str:
    """The name with an underscore before a leading dot, for tools that skip hidden files."""
    return f"_{part}" if part.startswith(".") else part


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
    `keeps_types`, kept columns of Parquet files have cells of their types.
    `options` are the command-line options that apply to the format.
    """

    write: Callable[[Path, Iterable[ExportEntry], ExportSettings], None]
    is_folder: bool = False
    is_merged: bool = False
    needs_boxes: bool = False
    max_one: Literal["answers", "texts"] | None = None
    reads_images: bool = False
    unique_stems: bool = False
    has_label_folders: bool = False
    keeps_types: bool = False
    suffixes: frozenset[str] = frozenset()
    sanitize_name: Callable[[str, bool], str] = keep_name
    suffix_aliases: Mapping[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
