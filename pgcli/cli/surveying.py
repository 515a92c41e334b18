"""Rows of a result file on their way into an export: checked, counted, gathered by picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from pgcli.cli.drawing.naming import Names
from pgcli.errors import UsageError
from pgcli.printable import encodable
from pgcli.records import LOOKING, Rle
from pgcli.rows import cleaned
from pgcli.sources.paths import real, scheme
from pgcli.sources.reading import IMAGE_ENDINGS
from pgcli.state.files import got
from pgcli.state.folder import state_folder
from pgcli.state.state import RUN
from pgcli.views.exports.entry import Entry, Format, Row, Tally, found_in
from pgcli.views.exports.pictures import picture_at

NAMED = 5  # prompts that a message names
TEXTS = ("id", "image", "task", "prompt")


@dataclass
class Survey:
    """What the rows of a file are: how many, how many of them errors or about another prompt.

    `answers` and `texts` are the most that any picture has; `looks` says that some row was to have
    boxes, `masks` that some box has a mask.
    """

    rows: int = 0
    errors: int = 0
    others: int = 0
    answers: int = 0
    texts: int = 0
    looks: bool = False
    masks: bool = False
    labels: set[str] = field(default_factory=set)
    prompts: dict[str, None] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)

    @property
    def good(self) -> int:
        """How many rows are left to be written."""
        return self.rows - self.errors - self.others


def surveyed(rows: Iterable[Row], prompt: str | None) -> Survey:
    """What the rows are, those of one prompt if it is given. Raises UsageError for a damaged one.

    Takes memory for their labels, not for the rows.
    """
    found = Survey()
    for _, same in groupby(told(rows, prompt, found), key=picture_of):
        answers = texts = 0
        for row in same:
            answers += 1
            texts += row["task"] not in LOOKING
            found.looks |= row["task"] in LOOKING or bool(row["boxes"])
            found.masks |= any(one.mask is not None for one in found_in(row))
            found.labels.update(box["label"] for box in row["boxes"])
            found.columns |= dict.fromkeys(row)
        found.answers, found.texts = max(found.answers, answers), max(found.texts, texts)
    return found


def told(rows: Iterable[Row], prompt: str | None, found: Survey) -> Iterator[Row]:
    """The rows that are to be written, all of them counted and checked, in what UTF-8 can hold."""
    for row in map(cleaned, rows):
        found.rows += 1
        if row["error"] is not None:
            found.errors += 1
            continue
        if wrong := trouble(row):
            raise UsageError(
                f"row {found.rows:,} is no row of an answer: {wrong}",
                hint="name a file as caption, ask, detect, segment or ocr wrote it",
            )
        if len(found.prompts) < NAMED:
            found.prompts[row["prompt"]] = None
        if prompt is not None and row["prompt"] != prompt:
            found.others += 1
            continue
        yield row


def trouble(row: Row) -> str:
    """What keeps a row without an error from being exported, nothing for one of ours."""
    for name in TEXTS:
        if not isinstance(row[name], str):
            return f"{name} is no text"
    if not isinstance(row["answer"], str | None):
        return "answer is no text"
    sides = (row.get("width"), row.get("height"))
    if not all(isinstance(side, int) and side > 0 for side in sides):
        return "width and height are no sizes"
    boxes = row["boxes"]
    if not isinstance(boxes, list) or not all(map(is_box, boxes)):
        return "boxes are no list of boxes"
    try:
        for mask in row.get("masks") or ():
            if mask is not None and mask["rle"] is not None:
                check_mask(mask["rle"], sides)
    except (ValueError, TypeError, KeyError, AttributeError):
        return "masks are no list of masks"
    return ""


def is_box(box: Any) -> bool:
    """Whether it is a box with its four numbers, and a score or none."""
    if not isinstance(box, dict) or not isinstance(box.get("label"), str):
        return False
    corners = [box.get(name) for name in ("xmin", "ymin", "xmax", "ymax")]
    numbers = corners if box.get("score") is None else [*corners, box["score"]]
    return all(isinstance(one, int | float) and math.isfinite(one) for one in numbers)


def check_mask(rle: Any, sides: tuple[Any, ...]) -> None:
    """Raise ValueError where the runs are none, or of another size than the picture."""
    from pgcli.rle import area

    if tuple(rle["size"]) != sides[::-1]:
        raise ValueError("another size")
    area(Rle(sides[::-1], rle["counts"]))


def picture_of(row: Row) -> tuple[object, ...]:
    """What the rows of one picture share, which are together."""
    return row["index"], row["id"], row["image"]


def entries(
    rows: Iterable[Row],
    prompt: str | None,
    results: Path,
    root: str | None,
    format: Format,
    tally: Tally,
) -> Iterator[Entry]:
    """The pictures of rows that were surveyed, one by one, each with a name of its own."""
    endings = frozenset[str]() if format.by_stem else IMAGE_ENDINGS
    names = Names(endings)
    began_in = begun_in(results)
    good = told(rows, prompt, Survey())
    for number, (_, same) in enumerate(groupby(good, key=picture_of), start=1):
        group = tuple(same)
        id_, image = group[0]["id"], group[0]["image"]
        path = None if scheme(image) else os.path.join(began_in, real(image))  # noqa: PTH118
        ending = PurePosixPath(real(id_)).suffix
        if ending.lower() not in IMAGE_ENDINGS:
            ending = PurePosixPath(real(image)).suffix
        if ending.lower() not in IMAGE_ENDINGS:
            ending = ""
        # a text lies beside a picture whatever its name's bytes; what an index names is UTF-8
        asked = real(id_) if format.merged else encodable(real(id_))
        asked = asked.removesuffix(ending) if format.by_stem else asked
        own, name = Names(endings).claim(asked, number), names.claim(asked, number)
        whole, wish = (one.stem + (one.ending or ending) for one in (name, own))
        if whole != wish and not format.merged and format.opens:
            tally.rename(wish, whole)
        called = image if root is None else within(root, image, path)
        if (format.opens or format.merged) and not is_picture(path):
            path = None
        yield Entry(number, called, whole, path, group)


def within(root: str, image: str, path: str | None) -> str:
    """What the picture is called from the folder `root` on. Raises UsageError where it is not."""
    name = os.path.relpath(path, root) if path else ".."
    if name == ".." or name.startswith("../"):
        raise UsageError(
            f"{image} does not lie in {root}",
            hint="--root names the folder that holds all pictures; leave it out for whole paths",
        )
    return encodable(name)


def is_picture(path: str | None) -> bool:
    """Whether it is called one or is one: a row from elsewhere may name any file of the user's."""
    if path is None or Path(path).suffix.lower() in IMAGE_ENDINGS:
        return path is not None
    return picture_at(path) is not None


def begun_in(results: Path) -> str:
    """The folder from which a run named its pictures; this one where no run is known."""
    told = (got(state_folder(results) / RUN) or {}).get("told")
    folder = told.get("folder") if isinstance(told, dict) else None
    return folder if isinstance(folder, str) and Path(folder).is_dir() else ""
