"""Converts answers to rows of plain values, the same in every format, and back."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import date, time
from hashlib import sha256
from typing import Any

from pgcli.errors import UsageError
from pgcli.records import (
    CLASSIFY_COLUMNS,
    COLUMNS,
    CORNERS,
    EMBED_COLUMNS,
    EXTRA_COLUMNS,
    SCORE_COLUMNS,
    TEXT_EMBED_COLUMNS,
    TIMING_COLUMNS,
    Answer,
    Box,
    Choice,
    LabelProbability,
    Mask,
    Rle,
    Task,
    TextScore,
)
from pgcli.text import encodable

#: The numbers of a box, in their order.
BOX_NUMBERS = (*CORNERS, "score", "confidence")
DIGEST_CHARACTERS = 16  # of an answer's digest
MAX_FLOAT = sys.float_info.max  # a larger integer, which JSON may have, is not a float
#: The columns that are lists of one kind of record with a text and numbers.
LISTED: Mapping[str, type[Any]] = {
    "choices": Choice,
    "scores": TextScore,
    "labels": LabelProbability,
}
#: The columns of rows that are not answers to prompts.
BASE_OF_TASK: Mapping[Any, tuple[str, ...]] = {
    "embed": EMBED_COLUMNS,
    "score": SCORE_COLUMNS,
    "classify": CLASSIFY_COLUMNS,
}
#: The column that identifies such a row.
COLUMN_OF_TASK: Mapping[Task, str] = {
    "embed": "embedding",
    "score": "scores",
    "classify": "labels",
}
#: The values of columns that rows of a task do not have.
NO_COLUMN: Mapping[str, Any] = {**dict.fromkeys(COLUMNS), "prompt": "", "boxes": ()}
#: DEL, C1 and line separators, which JSON need not escape.
_RAW_CONTROLS = re.compile(r"[\x7f-\x9f\u2028\u2029]")
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * 19  # may exceed 64 bits
_ENCODER, _ASCII_ENCODER = (
    json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))
    for ascii_only in (False, True)
)


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The columns of a run's rows: its command's, `extras`, and the columns to `keep`.

    `base` are the columns of the command, `extras` those that only some of its runs have, as masks
    and choices. Without `timing` the timing columns are null. Embeddings have the precision of
    float16 where `float16` says so, and are lists of vectors of `pages`. Kept values that JSON does
    not have are text, or null. With `exact`, embeddings are text of their bytes. `values` is the
    schema of the column of this name.
    """

    timing: bool = True
    extras: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    exact: bool = False
    values: str | None = None
    base: tuple[str, ...] = COLUMNS
    float16: bool = False
    pages: bool = False

    def __post_init__(self) -> None:
        for name in self.keep:
            if name in self.columns or self.keep.count(name) > 1:
                raise UsageError(
                    f"<--keep=>: the output already has a column {name!r}",
                    hint="rename the kept column: <--keep COLUMN:NAME>",
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns except the kept ones, in order."""
        return (*self.base, *self.extras)

    @classmethod
    def of(cls, names: Iterable[str]) -> RowSchema:
        """The schema of rows with columns of these names; unknown names are kept columns."""
        columns = dict.fromkeys(names)
        base = base_of(columns)
        extras = tuple(name for name in EXTRA_COLUMNS if name in columns) if base == COLUMNS else ()
        return cls(
            base=base, extras=extras, keep=tuple(n for n in columns if n not in (*base, *extras))
        )

    def row(self, answer: Answer) -> dict[str, Any]:
        """The row with every column in order.

        Milliseconds have three decimals, embeddings all digits of their type, other floats six
        significant digits, which suffice to recover a corner's location token at any image size.
        Values that readers reject are replaced: NaN and infinity by null, a lone surrogate by
        U+FFFD.
        """
        row: dict[str, Any] = {name: getattr(answer, name) for name in self.columns}
        if "boxes" in row:
            row["boxes"] = [*map(box_to_dict, answer.boxes)]
            row["logprob"] = round6(answer.logprob)
        if answer.embedding is not None and "embedding" in row:
            row["embedding"] = self._embedding(answer.embedding)
        if row.get("masks") is not None:
            row["masks"] = [None if mask is None else mask_to_dict(mask) for mask in row["masks"]]
        for name, kind in LISTED.items():
            if row.get(name) is not None:
                row[name] = [to_dict(kind, value) for value in row[name]]
        for name in TIMING_COLUMNS:
            if name in row:
                number = row[name] if self.timing else None
                row[name] = round(number, 3) if isinstance(number, float) else number
        for name in self.keep:
            row[name] = answer.kept.get(name)
        for name, value in row.items():
            if value is not None:
                row[name] = json_safe(value)
        return row

    def _embedding(self, values: array[float] | str) -> str | list[float]:
        """The values as decimals that restore them, or as text of their bytes."""
        if isinstance(values, str):  # the vectors of a page
            return values
        if self.exact:
            return base64.b64encode(values).decode()
        digits = "%.5g" if self.float16 else "%.9g"
        return [float(digits % value) for value in values]

    def answer(self, row: Mapping[str, Any]) -> Answer:
        """The answer of a row; its own row is the same again.

        Raises ValueError if the row does not have these columns.
        """
        try:
            known = {
                **NO_COLUMN,
                "task": task_of(row),
                **{name: row[name] for name in self.columns},
            }
            if "boxes" in self.columns:
                known["boxes"] = read_boxes(row["boxes"])
            if known.get("embedding") is not None and not has_vectors(known["embedding"]):
                known["embedding"] = embedding_values(known["embedding"])
            if known.get("masks") is not None:
                known["masks"] = tuple(map(mask_from_dict, row["masks"]))
            for name, kind in LISTED.items():
                if known.get(name) is not None:
                    known[name] = tuple(kind(**value) for value in row[name])
            return Answer(**known, kept={name: row[name] for name in self.keep})
        except (KeyError, TypeError) as problem:
            raise ValueError(f"not a row of this run: {problem}") from problem


def task_of(row: Mapping[str, Any]) -> Any:
    """The task of a row: the column `task` of answers, or else the task by its other columns."""
    if "boxes" in row:
        task = row.get("task")
        return task if isinstance(task, str) else None
    return next((task for task, column in COLUMN_OF_TASK.items() if column in row), None)


def prompt_of(row: Mapping[str, Any]) -> Any:
    """The prompt of a row, or the text that is embedded; empty for tasks without prompts."""
    return row.get("prompt") if "boxes" in row else row.get("text", "")


def base_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that the command of a row writes; earlier ones had no column `truncated`."""
    base = BASE_OF_TASK.get(task_of(row), COLUMNS)
    is_text = base == EMBED_COLUMNS and "text" in row and "image" not in row
    columns = TEXT_EMBED_COLUMNS if is_text else base
    return columns if "truncated" in row else tuple(n for n in columns if n != "truncated")


def embedding_values(value: str | Iterable[float]) -> array[float]:
    """An embedding of a row, which is a list of numbers or text of their bytes, as float32."""
    if not isinstance(value, str):
        return array("f", value)
    values = array("f")
    values.frombytes(base64.b64decode(value))
    return values


def has_vectors(value: Any) -> bool:
    """Whether an embedding is the vectors of a page: `SIZE:`, and base64 of their float16 bytes."""
    return isinstance(value, str) and ":" in value


def with_embedding_list(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with its embedding as a list, if it is text of bytes and no page."""
    value = row.get("embedding")
    if not isinstance(value, str) or has_vectors(value):
        return row
    return {**row, "embedding": list(embedding_values(value))}


def schema_of_answers(answers: Iterable[Answer]) -> RowSchema:
    """The columns that at least one of the answers has; `masks` if `segment` made any of them.

    Raises UsageError if the answers have different columns.
    """
    extras, keep = dict[str, None](), dict[str, None]()
    bases: dict[tuple[str, ...], Task] = {}
    for answer in answers:
        base = BASE_OF_TASK.get(answer.task, COLUMNS)
        bases[TEXT_EMBED_COLUMNS if answer.text is not None else base] = answer.task
        extras |= {name: None for name in EXTRA_COLUMNS if getattr(answer, name) is not None}
        extras |= {"masks": None} if answer.task == "segment" else {}
        keep |= dict.fromkeys(answer.kept)
    if len(bases) > 1:
        raise UsageError(
            f"rows of {' and '.join(sorted(set(bases.values())))} have different columns",
            hint="write a file or a table for each",
        )
    return RowSchema(
        base=next(iter(bases), COLUMNS),
        extras=tuple(name for name in EXTRA_COLUMNS if name in extras),
        keep=tuple(keep),
    )


def as_saved(answer: Answer) -> Answer:
    """The answer with the six digits that result files have, as `RowSchema.row` writes it.

    Embeddings are exempt: a file has all their digits.
    """
    schema = schema_of_answers([answer])
    saved = schema.answer(schema.row(replace(answer, embedding=None)))
    return replace(saved, embedding=answer.embedding)


def answer_digest(row: Mapping[str, Any]) -> str:
    """A digest of a row's answer, error and boxes: it differs where an answer has changed."""
    boxes = row.get("boxes") or ()
    if isinstance(boxes, Sequence):
        boxes = [
            [box.get("label"), *(_number(box.get(name)) for name in CORNERS)]
            if isinstance(box, Mapping)
            else box
            for box in boxes
        ]
    content = json.dumps([row.get("answer"), row.get("error"), boxes], default=str)
    return sha256(content.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _number(value: Any) -> Any:
    """The number as text with its six digits, whole or not; anything else unchanged."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.6g}" if is_number and abs(value) < MAX_FLOAT else value


def box_to_dict(box: Box) -> dict[str, Any]:
    """A box as plain values."""
    return {"label": box.label} | {name: round6(getattr(box, name)) for name in BOX_NUMBERS}


def read_boxes(value: Any, what: str = "boxes") -> tuple[Box, ...]:
    """The boxes of a row that any program may have written.

    Raises ValueError that names the fault unless the value is a list of boxes.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"{what} is not a list of objects with label, {', '.join(CORNERS)}")
    return tuple(read_box(entry, f"{what}[{number}]") for number, entry in enumerate(value))


def read_box(value: Any, what: str) -> Box:
    """A box of such a row. Raises ValueError."""
    if not isinstance(value, Mapping) or not isinstance(value.get("label"), str):
        raise ValueError(f"{what} is not an object with a label")
    corners = []
    for name in CORNERS:
        if (corner := finite_number(value.get(name))) is None:
            raise ValueError(f"{what}: {name} is not a number")
        corners.append(corner)
    left, top, right, bottom = corners
    score, confidence = finite_number(value.get("score")), finite_number(value.get("confidence"))
    return Box(value["label"], left, top, right, bottom, score, confidence)


def finite_number(value: Any) -> float | None:
    """The value as a number; None for anything else, for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= MAX_FLOAT else None


def mask_to_dict(mask: Mask) -> dict[str, Any]:
    """A mask as plain values; `rle` is the form of pycocotools, null without pixels."""
    rle = None
    if mask.rle is not None:
        rle = {"size": list(mask.rle.size), "counts": mask.rle.counts}
    return {"codes": list(mask.codes), "rle": rle}


def mask_from_dict(mask: Mapping[str, Any] | None) -> Mask | None:
    """The inverse of `mask_to_dict`."""
    if mask is None:
        return None
    rle = mask["rle"]
    return Mask(tuple(mask.get("codes") or ()), rle and Rle(tuple(rle["size"]), rle["counts"]))


def to_dict(kind: type[Any], value: Any) -> dict[str, Any]:
    """An entry of a column of LISTED as plain values."""
    values = {field.name: getattr(value, field.name) for field in fields(kind)}
    return {key: round6(x) if isinstance(x, float) else x for key, x in values.items()}


def round6(number: float | None) -> float | None:
    """The number with six significant digits."""
    return None if number is None else float(f"{number:.6g}")


def json_safe(value: Any) -> Any:
    """The value as JSON represents it, at any depth.

    Without NaN, infinity and lone surrogates; integers beyond 64 bits and other objects are text.
    """
    if value is None or (isinstance(value, str) and value.isascii()):
        return value  # as most values are
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {json_safe(str(key)): json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else encodable(str(value))


def safe_json_text(value: Any) -> str:
    """`json_text` of `json_safe`, in two thirds of the time for a value that is safe already."""
    with suppress(TypeError, ValueError):  # also for NaN and lone surrogates
        text = json_text(value)
        if _LONG_INTEGER not in text.encode().translate(_ZEROS):
            return text
    return json_text(json_safe(value))


#: What messages say of answers that the limit of tokens cut; `note` has their number before it.
CUT_ANSWERS = "answers cut at the token limit, which --max-new-tokens raises"


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """The value as compact JSON on one line, without the characters that control a terminal."""
    text = (_ASCII_ENCODER if ascii_only else _ENCODER).encode(value)
    if text.isascii() and "\x7f" not in text:  # as most rows are
        return text
    return _RAW_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
