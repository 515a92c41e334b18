"""Merges the rows of several result files, and pairs the rows of two."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.output.reader import Row, read_results
from pgcli.parsing import box_groups, text_spans
from pgcli.rows import answer_digest, prompt_of

#: The largest difference between equal cosines or embedding values.
TOLERANCE = 1e-3
#: The index of an image, the number of a file, and a row.
MergeRow = tuple[int, int, Row]


@dataclass
class MergeStats:
    """The counts of a merge. `conflicts` are keys with different answers; the first is kept."""

    rows: int = 0
    errors: int = 0
    repeated: int = 0
    replaced: int = 0
    conflicts: int = 0


class MergedRows:
    """A row for each index and prompt, in the order of the index and then of the files.

    The first answer is kept, and an answer replaces an error. `stats` describe the last pass. The
    rows of one image are in memory at a time. Raises UsageError for files of different inputs.
    """

    def __init__(self, outputs: Sequence[Path]):
        self._outputs = outputs
        self.stats = MergeStats()

    def __iter__(self) -> Iterator[Row]:
        stats = self.stats = MergeStats()
        files = [ordered_rows(number, output) for number, output in enumerate(self._outputs)]
        for _, same in groupby(merge(*files, key=itemgetter(0, 1)), key=itemgetter(0)):
            kept: dict[str | None, Row] = {}
            first: MergeRow | None = None
            for file_row in same:
                first = first or file_row
                if first[2]["id"] != file_row[2]["id"]:
                    names = [
                        f"{row['id']!r} in {self._outputs[n]}" for _, n, row in (first, file_row)
                    ]
                    raise UsageError(
                        f"image {first[0]:,} is {names[0]}, and {names[1]}",
                        hint="merge needs results of the same input; diff compares rows by id",
                    )
                merge_row(kept, file_row[2], stats)
            for row in kept.values():
                stats.rows += 1
                stats.errors += row["error"] is not None
                yield row


def merge_row(kept: dict[str | None, Row], row: Row, stats: MergeStats) -> None:
    """Keep the row unless an earlier one of its prompt has an answer."""
    prompt = key_text(prompt_of(row))
    before = kept.get(prompt)
    if before is None:
        kept[prompt] = row
        return
    stats.repeated += 1
    if before["error"] is not None and row["error"] is None:
        kept[prompt] = row
        stats.replaced += 1
    elif row["error"] is None and not is_same_answer(before, row):
        stats.conflicts += 1


def ordered_rows(number: int, output: Path) -> Iterator[MergeRow]:
    """The rows of a file. Raises UsageError for indices that are not in order."""
    last = -1
    for row in read_results(output, exact=True):
        index = row["index"]
        if not isinstance(index, int) or isinstance(index, bool) or index < last:
            raise UsageError(
                f"{output} is not sorted by index: first at {row['id']!r}",
                hint="sort the rows by index first",
            )
        last = index
        yield index, number, row


def is_same_answer(first: Row, second: Row) -> bool:
    """Whether two rows have the same answer, with cosines and embeddings within TOLERANCE."""
    return content(first) == content(second) and all(
        a == b or abs(a - b) <= TOLERANCE or (math.isnan(a) and math.isnan(b))
        for a, b in zip(cells(first), cells(second), strict=True)
    )


def cells(row: Row) -> list[float]:
    """The cosines of a row of `score`, or the values of an embedding; NaN for null.

    The vectors of a page, which are text, are compared exactly.
    """
    embedding = row.get("embedding") or []
    values = [score["cosine"] for score in row.get("scores") or ()]
    values += [] if isinstance(embedding, str) else embedding
    return [math.nan if value is None else value for value in values]


def content(row: Row) -> tuple[Any, ...]:
    """What is compared exactly: of an answer with boxes the boxes, without the text around them."""
    texts = tuple(score["text"] for score in row.get("scores") or ())
    groups = [
        ([span.value for span in corners], codes, label)
        for corners, codes, label in box_groups(text_spans(str(row.get("answer") or "")))
    ]
    digest = answer_digest({**row, "answer": groups or row.get("answer")})
    page = row["embedding"] if isinstance(row.get("embedding"), str) else None
    return digest, texts, len(cells(row)), page


Pair = tuple[Row | None, Row | None]
Key = tuple[str | None, str | None]


def key_text(value: Any) -> str | None:
    """An id or a prompt as text, which other programs may have written as JSON."""
    is_text = value is None or isinstance(value, str)
    return value if is_text else json.dumps(value, sort_keys=True, default=str)


def paired_rows(first: Iterable[Row], second: Iterable[Row]) -> Iterator[Pair]:
    """The two rows of each id and prompt, then rows of one file with None.

    Rows of files in the same order are paired at once; rows that wait for their pair are in memory.
    """
    waiting: tuple[dict[Key, list[Row]], dict[Key, list[Row]]] = ({}, {})
    for pair in zip_longest(first, second):
        for side, row in enumerate(pair):
            if row is None:
                continue
            key = (key_text(row["id"]), key_text(prompt_of(row)))
            matches = waiting[1 - side].get(key)
            if matches is None:
                waiting[side].setdefault(key, []).append(row)
                continue
            match = matches.pop(0)
            if not matches:
                del waiting[1 - side][key]
            yield (match, row) if side else (row, match)
    yield from ((row, None) for rows in waiting[0].values() for row in rows)
    yield from ((None, row) for rows in waiting[1].values() for row in rows)
