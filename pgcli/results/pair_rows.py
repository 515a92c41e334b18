"""Pairs the rows of two result files by the id of their image and their prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from pgcli.output.reader import Row
from pgcli.rows import prompt_of

Pair = tuple[Row | None, Row | None]
Key = tuple[object, object]


def paired_rows(one: Iterable[Row], other: Iterable[Row]) -> Iterator[Pair]:
    """Both rows of each id and prompt, then rows of one file only, with None for the other.

    Rows of files in the same order are paired as they come; memory is needed for rows that one
    file has much earlier than the other.
    """
    waiting: tuple[dict[Key, list[Row]], dict[Key, list[Row]]] = ({}, {})
    for pair in zip_longest(one, other):
        for side, row in enumerate(pair):
            if row is None:
                continue
            key = (row["id"], prompt_of(row))
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
