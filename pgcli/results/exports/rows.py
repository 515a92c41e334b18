"""The rows of an export, of several files in one order, and unique names for its files."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from heapq import merge
from itertools import count, groupby, islice, zip_longest
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np

from pgcli.boxes import NO_FILTER, BoxFilter, clipped
from pgcli.errors import UsageError
from pgcli.output.reader import Row, read_results
from pgcli.records import BOX_TASKS, Box, Mask
from pgcli.results.image_locator import MissingImages, image_index, image_key, saved_record
from pgcli.results.options import ExportOptions
from pgcli.results.overlay import polygon
from pgcli.rle import read_mask
from pgcli.rows import BASE_OF_TASK, json_safe, mask_from_dict, read_boxes, task_of
from pgcli.stores.files import parse_path
from pgcli.text import MAX_NAMES


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


def row_boxes(row: Row) -> Iterator[tuple[Box, Mask | None]]:
    """A row's boxes, clipped to the image, each with its decoded mask or None.

    Boxes without an area in the image are skipped.
    """
    masks = row.get("masks") or ()
    for box, value in zip_longest(read_boxes(row["boxes"]), masks[: len(row["boxes"])]):
        if corners := clipped(box.corners, (row["width"], row["height"])):
            mask = mask_from_dict(value)
            yield box.moved(corners), mask if mask and mask.rle else None


def is_text_row(row: Row) -> bool:
    """Whether the answer of a row is a text without boxes."""
    return row["task"] not in BOX_TASKS and not row["boxes"]


def box_sides(box: Box) -> list[float]:
    """Left, top, width and height of a box."""
    # corners have six digits; further digits of a difference are float rounding
    return [box.xmin, box.ymin, round(box.xmax - box.xmin, 9), round(box.ymax - box.ymin, 9)]


def outline(box: Box, mask: Mask | None) -> np.ndarray:
    """The polygon of a box's mask, (n, 2) in pixels; empty without a mask.

    A mask without codes comes from an annotation, and extends to the sides of its box.
    """
    if mask is None or mask.rle is None:
        return np.empty((0, 2))
    return polygon(mask.rle, None if mask.codes else box.corners)


class FileRow(NamedTuple):
    """A row and the number of its file. `input` is equal for files from runs of the same input."""

    row: Row
    file: int
    input: int

    @property
    def image(self) -> tuple[object, ...]:
        """The key of an image, which consecutive rows share."""
        return (self.input, *image_key(self.row))


class SeveralFiles:
    """The rows of the files as a stream, ordered by the index, id and path of their images.

    `box_filter` selects their boxes. Later passes skip rows that a run added after the first pass.
    With `exact`, kept columns of Parquet files keep their types.
    """

    def __init__(
        self, outputs: Sequence[Path], box_filter: BoxFilter = NO_FILTER, *, exact: bool = False
    ):
        self.outputs = outputs
        self._box_filter, self._exact = box_filter, exact
        self._counts: list[int | None] = [None] * len(outputs)
        records = map(saved_record, outputs)
        inputs = [
            record and (record.input.get("folder"), record.input.get("sources"))
            for record in records
        ]
        self._inputs = [inputs.index(run_input) for run_input in inputs]

    def __iter__(self) -> Iterator[FileRow]:
        files = [self._rows(number) for number in range(len(self.outputs))]
        return files[0] if len(files) == 1 else merge(*files, key=image_order)

    def _rows(self, number: int) -> Iterator[FileRow]:
        count = 0
        rows = read_results(self.outputs[number], exact=self._exact)
        for row in islice(rows, self._counts[number]):
            count += 1
            yield FileRow(self._box_filter.row(row), number, self._inputs[number])
        self._counts[number] = count


def image_order(file_row: FileRow) -> tuple[int, str, str, int]:
    """The key by which files are merged; rows of one file have ascending indices."""
    row = file_row.row
    return image_index(row), str(row["id"]), str(row["image"]), file_row.input


TEXT_COLUMNS = ("id", "image", "task", "prompt")
MAX_SIDE = 2**31


@dataclass
class RowStats:
    """The statistics of the rows of a result file.

    `other_prompts` counts rows with another prompt than the selected one. `answers` and `texts` are
    the largest numbers for one image. `has_boxes` is true if a task finds boxes or a row has some.
    `outside` boxes have no area in their image. The limit of tokens `cut` answers. `prompts`, and
    `box_prompts` of rows with boxes, have the first MAX_NAMES only.
    """

    task: str = ""
    rows: int = 0
    images: int = 0
    errors: int = 0
    other_prompts: int = 0
    answers: int = 0
    texts: int = 0
    outside: int = 0
    cut: int = 0
    has_boxes: bool = False
    has_masks: bool = False
    labels: set[str] = field(default_factory=set)
    prompts: dict[str, None] = field(default_factory=dict)
    box_prompts: dict[str, None] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)

    @property
    def exported(self) -> int:
        """The number of exported rows."""
        return self.rows - self.errors - self.other_prompts


def collect_stats(rows: Iterable[FileRow], prompt: str | None) -> RowStats:
    """The statistics of the rows, of one prompt if given. Raises UsageError for an invalid row."""
    stats = RowStats()
    for _, same in groupby(valid_rows(rows, prompt, stats), key=attrgetter("image")):
        answers = texts = 0
        stats.images += 1
        for row, _, _ in same:
            answers += 1
            stats.cut += row.get("finish") == "length"
            texts += row["task"] not in BOX_TASKS
            if row["task"] in BOX_TASKS or row["boxes"]:
                stats.has_boxes = True
                if len(stats.box_prompts) < MAX_NAMES:
                    stats.box_prompts[row["prompt"]] = None
            inside = list(row_boxes(row))
            stats.outside += len(row["boxes"]) - len(inside)
            stats.has_masks |= any(mask is not None for _, mask in inside)
            stats.labels.update(box["label"] for box in row["boxes"])
            stats.task = row["task"]
        stats.answers, stats.texts = max(stats.answers, answers), max(stats.texts, texts)
    return stats


def valid_rows(rows: Iterable[FileRow], prompt: str | None, stats: RowStats) -> Iterator[FileRow]:
    """The rows to export, as UTF-8 text; all rows are counted and validated.

    The `score` of a box is its confidence, which readers of other formats set thresholds on.
    """
    for file_row in rows:
        row = with_answer_columns(
            {
                name: value if hasattr(value, "json") else json_safe(value)  # but a cell of Arrow
                for name, value in file_row.row.items()
            }
        )
        stats.rows += 1
        if row["error"] is not None:
            stats.errors += 1
            continue
        if problem := find_row_error(row):
            raise UsageError(
                f"row {stats.rows:,} is not a result row: {problem}",
                hint="name a file that an answering command wrote",
            )
        if len(stats.prompts) < MAX_NAMES:
            stats.prompts[row["prompt"]] = None
        if prompt is not None and row["prompt"] != prompt:
            stats.other_prompts += 1
            continue
        for box in row["boxes"]:
            if box.get("confidence") is not None:
                box["score"] = box["confidence"]
        stats.columns |= dict.fromkeys(file_row.row)
        yield file_row._replace(row=row)


def with_answer_columns(row: Row) -> Row:
    """The row with every column of answers, also of tasks that have other columns."""
    task = task_of(row)
    if task not in BASE_OF_TASK:
        return row
    missing: dict[str, Any] = {"image": None, "answer": None, "prompt": "", "boxes": []}
    return {**row, **{name: missing[name] for name in missing.keys() - row.keys()}, "task": task}


def find_row_error(row: Row) -> str:
    """Why a row without an error cannot be exported; empty for a valid row."""
    for name in TEXT_COLUMNS:
        if not isinstance(row[name], str):
            return f"its {name!r} is not text"
    if not isinstance(row["answer"], str | None):
        return "its 'answer' is not text"
    sides = [row.get("height"), row.get("width")]
    if not all(type(side) is int and 0 < side < MAX_SIDE for side in sides):
        return "its 'width' and 'height' are not sizes"
    try:
        read_boxes(row["boxes"])
        for number, value in enumerate(row.get("masks") or ()):
            mask = value and read_mask(value["rle"])
            if mask and list(mask.size) != sides:
                return f"its mask {number} and its image have different sizes"
    except (TypeError, KeyError):
        return "its 'masks' are not a list of masks"
    except ValueError as problem:
        return str(problem)
    return ""


LONGEST_NAME = 255  # bytes that file systems allow
LONGEST_PATH = 2048  # bytes; longer and deeper paths lose their outermost folders
MOST_FOLDERS = 64
LONGEST_ENDING = 8  # bytes, of `.caption`

#: Makes an allowed name from the name of a folder (with True) or file.
Sanitize = Callable[[str, bool], str]

_SLASHES = re.compile(r"[/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # terminals would execute these
_NOT_BYTES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # surrogates of no byte


class FileName(NamedTuple):
    """A relative path without its ending, which is empty if the id has no image ending.

    `wish` is the path with the ending that the id asks for; it differs if the name is taken or not
    allowed.
    """

    stem: str
    ending: str
    wish: str

    def with_ending(self, default: str) -> str:
        """The path with its ending, or with the default."""
        return self.stem + (self.ending or default)


class FileNames:
    """Makes a unique file name for each row; the second of two equal names ends in `-2`.

    Names differ also on file systems that ignore case.
    """

    def __init__(self, endings: frozenset[str], sanitize: Sanitize | None = None):
        self._endings = endings
        self._sanitize = sanitize or (
            lambda name, is_folder: folder_name(name, endings, is_folder=is_folder)
        )
        self._taken: dict[bytes, tuple[str, ...]] = {}  # the endings of each stem, by its digest
        self._next: dict[tuple[str, str], int] = {}  # number of a taken name

    def claim(self, id_: str, index: int, suffix: str = "") -> FileName:
        """The file name of the row with this id, or index if the id contains no name.

        A suffix, as the object that a row is about, is added to the stem.
        """
        text = _CONTROL.sub("_", _NOT_BYTES.sub("\ufffd", parse_path(id_)))
        names = [name for name in _SLASHES.split(text) if name.strip() not in ("", ".", "..")]
        *folders, last = names = names or [str(index)]
        own_name = "/".join(names)
        folders = [shortened(name, self._folder) for name in folders[-MOST_FOLDERS:]]
        while len(os.fsencode("/".join(folders))) > LONGEST_PATH - LONGEST_NAME - 2:
            del folders[0]
        last = self._sanitize(last, False)
        ending = PurePosixPath(last).suffix
        ending = ending if ending.lower() in self._endings else ""
        tail = _SLASHES.sub("_", _CONTROL.sub("_", suffix))
        stem = last.removesuffix(ending) + (f"-{tail}" if tail else "")
        room = LONGEST_NAME - (len(ending) or LONGEST_ENDING)
        wish = "/".join([*folders, shortened(stem, str, room)]), ending.casefold()
        for number in count(self._next.get(wish, 1)):
            tail = f"-{number}" if number > 1 else ""
            name = "/".join([*folders, shortened(stem, str, room - len(tail)) + tail])
            key = name_key(name)
            endings = self._taken.get(key, ())
            # a name without an ending may get any ending, so its stem is taken completely
            if not endings or (ending and not {"", ending.casefold()} & {*endings}):
                self._taken[key] = (*endings, ending.casefold())
                break
        if number > 1:  # smaller numbers stay taken: a million equal names are not tried each time
            self._next[wish] = number + 1
        return FileName(name, ending, own_name)

    def _folder(self, name: str) -> str:
        return self._sanitize(name, True)


def name_key(name: str) -> bytes:
    """A digest that is equal for names that some file systems treat as equal."""
    folded = unicodedata.normalize("NFC", name).casefold()
    return blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def folder_name(name: str, endings: frozenset[str], *, is_folder: bool) -> str:
    """The name, with `_` after a folder's name that ends like a file's."""
    looks_like_file = is_folder and PurePosixPath(name).suffix.lower() in endings
    return f"{name}_" if looks_like_file else name


def shortened(text: str, change: Callable[[str], str], limit: int = LONGEST_NAME) -> str:
    """The changed text, truncated to `limit` bytes."""
    text = text[:LONGEST_NAME]
    while len(os.fsencode(changed := change(text))) > limit:
        text = text[:-1]
    return changed
