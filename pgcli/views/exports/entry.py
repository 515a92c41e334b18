"""What an export is made of: a picture's rows, what was asked for, and what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pgcli.records import BOX_TASKS, Rle
from pgcli.views.missing_images import Missing

Row = Mapping[str, Any]
#: What happens to a text that is there already.
Existing = Literal["skip", "overwrite", "append"]
#: What an export with pictures in it has of them.
Pictures = Literal["link", "copy", "none"]

NAMED = 5  # of what is told one by one


class Found(NamedTuple):
    """A box: its label, left, top, width and height in pixels, its score, its mask if any."""

    label: str
    left: float
    top: float
    width: float
    height: float
    score: float | None
    mask: Rle | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A picture with its rows, of which none is an error.

    `number` counts from 1 in the order of the rows. `image` is what the picture is called outside
    of the export and `name` what it is called within, a relative path that no other has: `stem`
    with an ending. `own` is the name that it would have if nothing were in the way. `path` is the
    file that it is, None where it is none, but bytes or at an address; `read` brings its bytes, or
    raises `ImageError`. `is_address` says that `image` leads somewhere by itself.
    """

    number: int
    image: str
    name: str
    stem: str
    own: str
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
        """The answers that are no boxes."""
        return [row["answer"] or "" for row in self.rows if row["task"] not in BOX_TASKS]

    def found(self) -> Iterator[Found]:
        """The boxes of all rows, in their order."""
        for row in self.rows:
            yield from found_in(row)


def found_in(row: Row) -> Iterator[Found]:
    """A row's boxes as far as they lie in the picture, each with its mask if that was decoded.

    One without an area there, as other tools may write, is left out.
    """
    masks = row.get("masks") or []
    for place, box in enumerate(row["boxes"]):
        rle = masks[place]["rle"] if place < len(masks) and masks[place] else None
        mask = rle and Rle((rle["size"][0], rle["size"][1]), rle["counts"])
        left, right = (min(max(box[name], 0), row["width"]) for name in ("xmin", "xmax"))
        top, bottom = (min(max(box[name], 0), row["height"]) for name in ("ymin", "ymax"))
        # corners have six digits: what a difference has beyond is of the floats alone
        width, height = round(right - left, 4), round(bottom - top, 4)
        if width > 0 and height > 0:
            yield Found(box["label"], left, top, width, height, box.get("score"), mask)


@dataclass
class Tally:
    """What an export wrote, and what it did not.

    `maskless` boxes stand for their masks, which are not there, and `outside` ones, that are left
    out, have no area in their picture; `missing` pictures could not be read, and `copied` ones not
    linked to, as they are no files; `unread` ones the tool passes over, and `turned` ones lie
    otherwise than what they were made of; `left` texts were there before and stay, `nameless` ones
    found no name that was free; `renamed` have another name than their own, and `told` are the
    first few of them.
    """

    pictures: int = 0
    boxes: int = 0
    captions: int = 0
    maskless: int = 0
    missing: Missing = field(default_factory=Missing)
    outside: int = 0
    unread: int = 0
    copied: int = 0
    turned: int = 0
    left: int = 0
    nameless: int = 0
    renamed: int = 0
    told: list[str] = field(default_factory=list)

    def rename(self, name: str, becomes: str) -> None:
        """Note that a picture bears another name than its own, which is taken or misread."""
        self.renamed += 1
        self.told += [f"{name} is {becomes}"] if len(self.told) < NAMED else []


@dataclass(frozen=True)
class Wanted:
    """What was asked for. `labels` are all labels, each with its place from 0; `columns` the rows'.

    `looks` says that some row was to have boxes, `masks` that some box has a mask. `prefix` stands
    before a picture's address; `before` and `after` a text.
    """

    labels: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    looks: bool = False
    masks: bool = False
    pictures: Pictures = "link"
    prefix: str = ""
    before: str = ""
    after: str = ""
    existing: Existing = "skip"
    is_raw: bool = False
    tally: Tally = field(default_factory=Tally)


def untouched(part: str, is_folder: bool) -> str:
    """The name as it is, as its tool reads any."""
    return part


def unhidden(part: str, is_folder: bool) -> str:
    """The name without a dot before it: tools pass over what is hidden."""
    return f"_{part}" if part.startswith(".") else part


@dataclass(frozen=True)
class Format:
    """A format: what writes it, and what it asks of the rows.

    `write` makes the file or, of a folder, fills it, where nothing is yet. A `merged` one goes
    among files that are there. `holds` boxes, else it can do without. `one_of` is what a picture
    may have but one of: an answer, or a text, which boxes are not. `opens` the pictures. `by_stem`
    tells pictures apart by their names without endings. `endings` are those of files that it has
    where pictures are or in like folders; `tidied` is a folder's or a file's name as it is to be,
    so that the tool reads what has it; `called` has other endings for some of pictures, where they
    are told apart `by_stem`.
    """

    write: Callable[[Path, Iterable[Entry], Wanted], None]
    is_folder: bool = False
    merged: bool = False
    holds_boxes: bool = False
    one_of: Literal["answers", "texts"] | None = None
    opens: bool = False
    by_stem: bool = False
    endings: frozenset[str] = frozenset()
    tidied: Callable[[str, bool], str] = untouched
    called: Mapping[str, str] = field(default_factory=dict)
    takes: frozenset[str] = frozenset()
