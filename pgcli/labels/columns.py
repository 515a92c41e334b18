"""Reads labelled rows: the labels of an image in the columns of any manifest or result file.

Training, the truth of `eval` and imports read the same columns, in the same order of preference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs.options import PROMPT_COLUMNS, InputFile, manifest_ending
from pgcli.labels.labelled_image import LabelledImage, objects_of
from pgcli.records import CORNERS, Box, Rle
from pgcli.rle import read_mask
from pgcli.rows import finite_number, read_boxes
from pgcli.text import count

#: The columns of answers; as of PROMPT_COLUMNS, the first one that a row has a value in is read.
#: Columns of data sets come before columns of result files: a kept `suffix` is the truth about an
#: `answer`.
ANSWER_COLUMNS = (
    *("suffix", "answers", "answer", "label", "caption", "captions", "text", "texts", "txt"),
)
LABEL = "label"  # also the label of a box in a row with columns of corners
BOX_COLUMNS = ("boxes", "masks", *CORNERS)
#: The columns whose cells in CSV are JSON lists; any other cell is text.
LIST_COLUMNS = frozenset(("answers", "captions", "texts", "boxes", "masks"))
MAX_VALUE_CHARACTERS = 200  # of a value that rows are grouped by


@dataclass(frozen=True)
class LabelColumns:
    """The columns to read: known ones, or named by a command; "" for none."""

    prompt: str | None = None
    answer: str | None = None

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The columns that a command names, which a row has to have."""
        return tuple(name for name in (self.prompt, self.answer) if name)

    @property
    def known(self) -> tuple[str, ...]:
        """The other columns that are read."""
        names = (*self.prompts, *self.answers, *BOX_COLUMNS, LABEL)
        return tuple(dict.fromkeys(name for name in names if name not in self.named))

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """The columns of prompts, in order of preference."""
        return self._candidates(self.prompt, PROMPT_COLUMNS)

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """The columns of answers, in order of preference."""
        return self._candidates(self.answer, ANSWER_COLUMNS)

    def _candidates(self, named: str | None, known: Sequence[str]) -> tuple[str, ...]:
        """The column that a command names, or else the known columns without another role."""
        if named is not None:
            return (named,) if named else ()
        return tuple(name for name in known if name not in self.named)


@dataclass(frozen=True)
class LabelReader:
    """Reads the labelled rows of a table, for training, as ground truth and for imports.

    `class_names` belong to columns with integer classes. With `is_csv`, blank cells say nothing,
    and cells of LIST_COLUMNS are lists. `units` is not empty after a row with boxes.
    """

    columns: LabelColumns = field(default_factory=LabelColumns)
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_csv: bool = False
    units: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, file: InputFile, columns: LabelColumns | None = None) -> LabelReader:
        """The reader of a file's rows, with the names of its classes."""
        is_csv = manifest_ending(file.path) in (".csv", ".tsv")
        return cls(columns or LabelColumns(), classes_of(file), is_csv)

    def fields(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of a row: None for NaN, which pandas writes for nothing, and blank cells."""
        values = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in row.items()
        }
        if not self.is_csv:
            return values
        return {name: csv_value(name, value) for name, value in values.items()}

    def read(self, row: Mapping[str, Any], where: str) -> LabelledImage:
        """The labels in the values of a row. Raises UsageError that names `where` for an invalid
        box or mask, also for the first boxes if they are fractions.
        """
        boxes = boxes_of(row, where, self._named(LABEL, row.get(LABEL)))
        if boxes and not self.units:
            if are_fractions(box.corners for box in boxes):
                raise UsageError(
                    f"{where}: the boxes are fractions of the image, not pixels",
                    hint="multiply them by the width and the height of the image",
                )
            self.units.add("pixels")
        columns = self.columns
        answers = columns.answers
        if boxes is not None and row.get("boxes") is None and columns.answer is None:
            answers = tuple(name for name in answers if name != LABEL)  # it is the label of the box
        texts = {name: str(row[name]) for name in columns.prompts if is_text(row.get(name))}
        asked = [name for name, text in texts.items() if text.strip()] or [*texts][:1]
        answered = [name for name in answers if row.get(name) is not None]
        masks = read_masks(row.get("masks"), where)
        if masks and len(masks) != len(boxes or ()):
            numbers = f"{count(len(masks), 'mask')} for {count(len(boxes or ()), 'box')}"
            raise UsageError(
                f"{where}: 'masks' has {numbers}",
                hint="a mask, or null, for each box",
            )
        return LabelledImage(
            prompt=texts[asked[0]] if asked else None,
            answers=read_answers(self._named(answered[0], row[answered[0]])) if answered else (),
            objects=None if boxes is None else objects_of(boxes, masks),
            size=stated_size(row) or next((mask.size[::-1] for mask in masks if mask), None),
        )

    def _named(self, column: str, value: Any) -> Any:
        """The value with the names of classes for integers; None stands for no class."""
        names = self.class_names.get(column)
        if isinstance(value, list):
            return [self._named(column, entry) for entry in value]
        if names is None or isinstance(value, bool) or not isinstance(value, int):
            return value
        return names[value] if 0 <= value < len(names) else None


def label_of_folder(source: str, id_: str, hint: str = "") -> str:
    """The label of an image: the name of the folder right below the source. Raises UsageError."""
    parts = PurePosixPath(id_).parts
    if len(parts) < 2:
        raise UsageError(
            f"{id_} has no label: it is directly in {source}",
            hint=f"move it into a folder named after its label{hint}",
        )
    return parts[0]


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """The names of classes by column, as the `datasets` library writes them into a schema."""
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        elements = {name: element_of(feature) for name, feature in features.items()}
        return {
            column: tuple(map(str, feature["names"]))
            for column, feature in elements.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    return {}


def element_of(feature: Any) -> Any:
    """The feature of the values in a list of the `datasets` library; any other unchanged."""
    if isinstance(feature, dict):
        return feature.get("feature", feature)
    return feature[0] if isinstance(feature, list) and feature else feature


def classes_of(file: InputFile) -> dict[str, tuple[str, ...]]:
    """The names of classes of the columns of a file, which a Parquet file may have."""
    if not file.path.lower().endswith(".parquet"):
        return {}
    from pgcli.inputs.parquet import ParquetTable  # slow to import

    try:
        return class_names(ParquetTable(file).layout.schema.metadata)
    except ManifestError:  # which reading its rows says
        return {}


def is_text(value: Any) -> bool:
    """Whether the value is a text or a number."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def csv_value(column: str, value: Any) -> Any:
    """A cell of CSV: None if it is blank, the list in a column of LIST_COLUMNS, else its text."""
    if column in LIST_COLUMNS and str(value).lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value if str(value).strip() else None


def read_answers(value: Any) -> tuple[str, ...]:
    """The true answers: a text, or a list of texts, or of objects as VQA has them.

    The answers in an object are its `answer`, or its `text` as in SQuAD.
    """
    if isinstance(value, Mapping):
        return read_answers(value.get("answer", value.get("text")))
    if isinstance(value, list | tuple):
        return tuple(text for answer in value for text in read_answers(answer))
    return () if value is None else (str(value),)


def boxes_of(row: Mapping[str, Any], where: str, label: Any) -> tuple[Box, ...] | None:
    """The boxes of a row, in `boxes`, or in its own corners with the `label`; None without.

    If all columns of corners are empty, the image has no boxes. Raises UsageError.
    """
    value = row.get("boxes")
    if value is None or value == "":
        if any(name not in row for name in CORNERS):
            return None
        if all(row[name] in (None, "") for name in CORNERS):
            return ()
        corners = {name: as_number(row[name]) for name in CORNERS}
        value = [{"label": "" if label is None else str(label), **corners}]
    try:
        return read_boxes(value)
    except ValueError as problem:
        hint = "a box is {label, xmin, ymin, xmax, ymax} in pixels"
        raise UsageError(f"{where}: {problem}", hint=hint) from problem


def column_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that rows can be grouped by; long texts are truncated, lists and objects None."""
    values = {name: value for name, value in row.items() if value is not None}
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = value[:MAX_VALUE_CHARACTERS]
        elif not isinstance(value, int | float):
            values[name] = None
    return values


def are_fractions(boxes: Iterable[Sequence[float]]) -> bool:
    """Whether all numbers of some boxes are between 0 and 1, as no box in pixels has them."""
    return all(0 <= side <= 1 for box in boxes for side in box)


def as_number(value: Any) -> float | None:
    """The value as a number; None for anything else."""
    if value is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        return finite_number(float(value))
    return None


def stated_size(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """The `width` and `height` that a row states for its image; None where it does not.

    Tables have them as texts too, and as `64.0` beside blank cells; 0 and less are not known.
    """
    sides = [as_number(row.get(name)) for name in ("width", "height")]
    width, height = (round(side or 0) for side in sides)
    return (width, height) if width > 0 and height > 0 else None


def read_masks(value: Any, where: str) -> tuple[Rle | None, ...]:
    """The masks of a row, of result files or in COCO's form. Raises UsageError."""
    if value is None or value == "":
        return ()
    try:
        return tuple(map(read_mask, value))
    except (TypeError, ValueError) as problem:
        raise UsageError(
            f"{where}: 'masks' must be a list of masks",
            hint="a mask is {size, counts} in COCO's compressed run-length encoding",
        ) from problem
