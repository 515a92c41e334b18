"""Converts answers to rows of plain values, the same in every format, and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

from pgcli.arrow_values import to_json
from pgcli.errors import UsageError
from pgcli.printable import encodable
from pgcli.records import (
    COLUMNS,
    TIMING_COLUMNS,
    Alternative,
    Answer,
    Box,
    Choice,
    Mask,
    Rle,
    TokenLogprob,
)

#: The numbers of a box, in their order.
BOX_NUMBERS = ("xmin", "ymin", "xmax", "ymax", "score", "confidence")
DIGEST_CHARACTERS = 16  # of an answer's digest
#: The columns that are lists of one kind of record with a text and numbers.
LISTED: Mapping[str, type[Any]] = {
    "choices": Choice,
    "alternatives": Alternative,
    "token_logprobs": TokenLogprob,
}
#: DEL, C1 and line separators, which JSON need not escape.
_RAW_CONTROLS = re.compile(r"[\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The columns of a run's rows: those of every run, `extras`, and the columns to `keep`.

    `extras` are columns that only some runs have, as masks and choices. Without `timing` the timing
    columns are null; without `confidence` boxes have none, as in files of older versions. Kept
    values that JSON does not have are text, or null; with `exact` they are text from which the
    values of a Parquet column are made again.
    """

    timing: bool = True
    extras: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    confidence: bool = True
    exact: bool = False

    def __post_init__(self) -> None:
        for name in self.keep:
            if name in self.columns or self.keep.count(name) > 1:
                raise UsageError(
                    f"--keep {name}: the output has a column of that name already",
                    hint=f"give it another one: --keep {name}:NAME",
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns except the kept ones, in order."""
        return (*COLUMNS, *self.extras)

    def row(self, answer: Answer) -> dict[str, Any]:
        """The row with every column in order.

        Milliseconds have three decimals, other floats six significant digits, which suffice to
        recover a corner's location token at any image size. Values that readers reject are
        replaced: NaN and infinity by null, a lone surrogate by U+FFFD.
        """
        row: dict[str, Any] = {name: getattr(answer, name) for name in self.columns}
        row["boxes"] = [box_to_dict(box, confidence=self.confidence) for box in answer.boxes]
        row["logprob"] = round6(answer.logprob)
        if row.get("masks") is not None:
            row["masks"] = [None if mask is None else mask_to_dict(mask) for mask in row["masks"]]
        for name, kind in LISTED.items():
            if row.get(name) is not None:
                row[name] = [to_dict(kind, value) for value in row[name]]
        for name in TIMING_COLUMNS:
            row[name] = round3(row[name]) if self.timing else None
        for name in self.keep:
            value = answer.kept.get(name)
            row[name] = to_json(value) if self.exact else value
        return {name: json_safe(value) for name, value in row.items()}

    def answer(self, row: Mapping[str, Any]) -> Answer:
        """The answer of a row, whose row is the same again.

        Raises ValueError if the row does not have these columns.
        """
        try:
            known = {name: row[name] for name in self.columns}
            known["boxes"] = tuple(Box(**box) for box in row["boxes"])
            if known.get("masks") is not None:
                known["masks"] = tuple(map(mask_from_dict, row["masks"]))
            for name, kind in LISTED.items():
                if known.get(name) is not None:
                    known[name] = tuple(kind(**value) for value in row[name])
            return Answer(**known, kept={name: row[name] for name in self.keep})
        except (KeyError, TypeError) as problem:
            raise ValueError(f"not a row of this run: {problem}") from problem


def answer_digest(row: Mapping[str, Any]) -> str:
    """A digest of a row's answer, error and boxes: it differs where an answer has changed."""
    boxes = [
        [box.get("label"), *(_number(box.get(name)) for name in BOX_NUMBERS[:4])]
        if isinstance(box, Mapping)
        else box
        for box in row.get("boxes") or ()
    ]
    content = json.dumps([row.get("answer"), row.get("error"), boxes], default=str)
    return sha256(content.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _number(value: Any) -> Any:
    """The number as text with its six digits, whole or not; anything else unchanged."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.6g}" if is_number else value


def fill_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with null in the columns that another tool has left out."""
    return {**dict.fromkeys(COLUMNS), **row}


def box_to_dict(box: Box, *, confidence: bool = True) -> dict[str, Any]:
    """A box as plain values."""
    numbers = BOX_NUMBERS if confidence else BOX_NUMBERS[:-1]
    return {"label": box.label} | {name: round6(getattr(box, name)) for name in numbers}


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
    return Mask(tuple(mask["codes"]), rle and Rle(tuple(rle["size"]), rle["counts"]))


def to_dict(kind: type[Any], value: Any) -> dict[str, Any]:
    """An entry of a column of LISTED as plain values."""
    values = {one.name: getattr(value, one.name) for one in fields(kind)}
    return {key: round6(x) if isinstance(x, float) else x for key, x in values.items()}


def round6(number: float | None) -> float | None:
    """The number with six significant digits."""
    return None if number is None else float(f"{number:.6g}")


def round3(milliseconds: float | None) -> float | None:
    """The number with three decimals; an integer, such as `batch`, is returned as it is."""
    return round(milliseconds, 3) if isinstance(milliseconds, float) else milliseconds


def json_safe(value: Any) -> Any:
    """The value as JSON represents it, without NaN, infinity and lone surrogates, at any depth."""
    if isinstance(value, str) and value.isascii():  # most values
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {json_safe(str(key)): json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner) for inner in value]
    if isinstance(value, bytes):
        return to_json(value)
    return value if value is None or isinstance(value, int) else encodable(str(value))


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """The value as compact JSON on one line, without the characters that control a terminal."""
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))
    return _RAW_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
