"""Reads what is true of images and prompts: a manifest, a result file, or a JSON file of COCO."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcli.box_filter import box_of, number
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.records import Box, Rle
from pgcli.rle import area
from pgcli.tasks.question import normalize

#: The columns of prompts and of answers, the first of which that exists is read.
PROMPT_COLUMNS = ("prompt", "prefix")
ANSWER_COLUMNS = ("answers", "answer", "suffix", "label", "caption", "captions", "text", "texts")
CORNERS = ("xmin", "ymin", "xmax", "ymax")
MAX_VALUE_CHARACTERS = 200  # of a value that rows are grouped by

Key = tuple[str, str | None]


@dataclass(frozen=True)
class TruthColumns:
    """The names of columns, as the command line gives them. An empty prompt column: no prompts."""

    id: str = "id"
    prompt: str | None = None
    answer: str | None = None


@dataclass
class Truths:
    """The truth by id and prompt. `columns` are those of the file, `images` the paths by id."""

    name: str
    by_key: dict[Key, RowTruth] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    has_prompts: bool = False
    images: dict[str, str] = field(default_factory=dict)

    def add(self, key: Key, truth: RowTruth) -> None:
        """Add what is true; rows of the same id and prompt, as captions of an image, are joined."""
        known = self.by_key.get(key)
        self.by_key[key] = truth if known is None else merged(known, truth)


def merged(one: RowTruth, other: RowTruth) -> RowTruth:
    """Both truths in one."""

    def both(first: Any, second: Any) -> Any:
        return second if first is None else first if second is None else (*first, *second)

    return RowTruth(
        one.answers + other.answers,
        both(one.boxes, other.boxes),
        both(one.masks, other.masks),
        one.crowds + other.crowds,
        {**other.columns, **one.columns},
    )


def read_truth(name: str, columns: TruthColumns) -> Truths:
    """The truth in a file or folder. Raises UsageError."""
    path = Path(name)
    if not path.exists():
        raise UsageError(f"{name} does not exist", hint="--truth names a manifest with answers")
    truths = Truths(name)
    if path.suffix.lower() == ".json":
        add_coco(path, truths)
    else:
        for position, id_, row in truth_rows(path, columns, truths):
            add_row(truths, id_, row, columns, f"{name}, {position}")
    if not truths.by_key:
        raise UsageError(f"{name} has no rows", hint="--truth names a manifest with answers")
    return truths


def truth_rows(
    path: Path, columns: TruthColumns, truths: Truths
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The position, the id and the values of each row of a manifest or a result file."""
    from pgcli.sinks.reader import read_results
    from pgcli.sources.read_options import ReadOptions
    from pgcli.sources.readers import load_reader, manifest_ending
    from pgcli.sources.readers.bookmarks import Bookmarks
    from pgcli.sources.readers.reader import Manifest
    from pgcli.sources.row_item import row_name

    ending = manifest_ending(path.name)
    if path.is_dir():
        for number_, row in enumerate(read_results(path), 1):
            truths.columns |= dict.fromkeys(row)
            yield f"row {number_}", str(row["id"]), row
        return
    if ending is None or ending.startswith((".tar", ".tgz")):
        raise UsageError(
            f"{path} is not a table",
            hint="--truth takes .jsonl, .csv, .tsv, .parquet, and COCO's .json",
        )
    reader = load_reader(ending)
    manifest = Manifest(str(path), str(path), "image", Bookmarks())
    names = set(reader.columns(manifest)) if reader.columns else set()
    truths.columns |= dict.fromkeys(sorted(names))
    options = ReadOptions(id_column=columns.id)
    for found in reader.rows(manifest, names):
        truths.columns |= dict.fromkeys(found.values)
        id_ = row_name(found, options)
        if id_ is None:
            raise UsageError(
                f"{path}, {found.position}: it has neither {columns.id!r} nor a path in 'image'",
                hint="rows are joined by id; --id-column names the column",
            )
        yield found.position, id_, found.values


def add_row(
    truths: Truths, id_: str, row: Mapping[str, Any], columns: TruthColumns, where: str
) -> None:
    """Add the truth of a row; one with an error says nothing. Raises UsageError."""
    if row.get("error") is not None:
        return
    prompt_name = first_column(columns.prompt, PROMPT_COLUMNS, row, where)
    answer_name = first_column(columns.answer, ANSWER_COLUMNS, row, where)
    prompt = row.get(prompt_name) if prompt_name else None
    is_prompt = isinstance(prompt, str)
    truths.has_prompts |= is_prompt
    if isinstance(row.get("image"), str):
        truths.images[id_] = row["image"]
    boxes = read_boxes(row, where)
    truth = RowTruth(
        answers=read_answers(row.get(answer_name)) if answer_name else (),
        boxes=boxes,
        masks=read_masks(row.get("masks"), where),
        columns={name: short(value) for name, value in row.items() if is_plain(value)},
    )
    truths.add((id_, normalize(str(prompt)) if is_prompt else None), truth)


def first_column(
    given: str | None, known: Sequence[str], row: Mapping[str, Any], where: str
) -> str | None:
    """The column that was named, or the first known one that the row has; None for no column."""
    if given is None:
        return next((name for name in known if row.get(name) is not None), None)
    if given and given not in row:
        raise UsageError(
            f"{where}: there is no {given!r}", hint=f"its columns are: {', '.join(row)}"
        )
    return given or None


def parsed(value: Any) -> Any:
    """The value, or that of its JSON text, as CSV has lists."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def read_answers(value: Any) -> tuple[str, ...]:
    """The true answers: a text, a list of texts, or of objects with `answer`, as VQA has them."""
    value = parsed(value)
    if isinstance(value, Mapping):
        value = value.get("answer")
    if isinstance(value, list | tuple):
        return tuple(text for one in value for text in read_answers(one))
    return () if value is None else (str(value),)


def read_boxes(row: Mapping[str, Any], where: str) -> tuple[Box, ...] | None:
    """The boxes of a row, in `boxes` or in its own corners; None without. Raises UsageError."""
    value = parsed(row.get("boxes"))
    if value is None or value == "":
        if any(row.get(name) in (None, "") for name in CORNERS):
            return None
        corners = {name: as_number(row[name]) for name in CORNERS}
        value = [{"label": str(row.get("label", "")), **corners}]
    boxes = [box_of(one) for one in value] if isinstance(value, list | tuple) else [None]
    if None in boxes:
        raise UsageError(
            f"{where}: 'boxes' are not boxes",
            hint="a box is {label, xmin, ymin, xmax, ymax} in pixels",
        )
    return tuple(box for box in boxes if box is not None)


def as_number(value: Any) -> float | None:
    """The value as a number; None for anything else."""
    with suppress(TypeError, ValueError):
        return number(float(value))
    return None


def read_masks(value: Any, where: str) -> tuple[Rle | None, ...] | None:
    """The masks of a row, of result files or in COCO's form; None without. Raises UsageError."""
    value = parsed(value)
    if value is None or value == "":
        return None
    try:
        return tuple(map(mask_of, value))
    except (TypeError, KeyError, ValueError, AttributeError) as problem:
        raise UsageError(
            f"{where}: 'masks' are not masks",
            hint="a mask is {size, counts} in COCO's compressed run-length encoding",
        ) from problem


def mask_of(value: Any) -> Rle | None:
    """The run lengths of a mask. Raises ValueError and others for a value that is not one."""
    runs = value.get("rle", value) if value is not None else None
    if runs is None:
        return None
    height, width = runs["size"]
    mask = Rle((int(height), int(width)), str(runs["counts"]))
    area(mask)
    return mask


def is_plain(value: Any) -> bool:
    """Whether rows can be grouped by the value."""
    return isinstance(value, str | int | float | bool)


def short(value: Any) -> Any:
    """The value; a long text is cut."""
    return value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value


def add_coco(path: Path, truths: Truths) -> None:
    """Add the images of a JSON file of COCO, whose names are the ids. Raises UsageError."""
    from pgcli.annotations.coco import read
    from pgcli.annotations.truth import ImportSettings, TrueBox

    def plain(box: TrueBox) -> Box:
        return Box(box.label, box.xmin, box.ymin, box.xmax, box.ymax, 1.0)

    annotations = read(path, ImportSettings(Path()))
    for image in annotations.images:
        boxes, masks = (tuple(map(plain, image.boxes)), tuple(box.mask for box in image.boxes))
        has_boxes = bool(annotations.labels)
        crowds = tuple(map(plain, image.crowds))
        if has_boxes:
            truth = RowTruth((), boxes, masks if any(masks) else None, crowds)
            truths.add((image.id, None), truth)
        for text in image.texts:
            truths.has_prompts |= text.prompt is not None
            truths.add((image.id, text.prompt), RowTruth((text.text,)))
    truths.columns |= dict.fromkeys(("id", "boxes" if annotations.labels else "answers"))
