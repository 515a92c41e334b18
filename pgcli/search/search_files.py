"""Hits and groups of near-duplicates among the vectors of files, with the names of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow

from pgcli.search.duplicates import THRESHOLD, duplicate_groups, similarities_to_first
from pgcli.search.nearest import TopK, Vectors
from pgcli.search.vector_files import VectorFiles, VectorName, name_at

#: Rows by which an array of vectors grows; the system maps more memory without a copy.
GROWTH = 2**16

OnRows = Callable[[int], None]


class Hit(NamedTuple):
    """A row and its cosine similarity: to the query, or to the first row of its group."""

    name: VectorName
    similarity: float


def ignore(rows: int) -> None:
    """Reports no progress."""


def search_files(
    queries: Vectors,
    files: VectorFiles,
    k: int = 10,
    *,
    min_similarity: float | None = None,
    on_rows: OnRows = ignore,
) -> list[list[Hit]]:
    """The hits of each of the normalised queries (Q, E), best first, in one pass over the files.

    Memory does not grow with the number of vectors. `on_rows` is called with how many rows were
    read since it was last called. Raises UsageError for files that are not vectors of the size
    of the queries.
    """
    top = TopK(queries, k, min_similarity=min_similarity)
    names: dict[int, VectorName] = {}
    for block in files:
        for place in top.add(block.vectors, block.rows):
            names[int(block.rows[place])] = block.name(int(place))
        if len(names) > 2 * k * len(queries):
            best = top.hits().rows
            names = {row: names[row] for row in np.unique(best[best >= 0]).tolist()}
        on_rows(len(block.rows))
    rows, similarities = top.hits()
    return [
        [
            Hit(names[row], float(similarity))
            for row, similarity in zip(found, scores, strict=True)
            if row >= 0
        ]
        for found, scores in zip(rows.tolist(), similarities, strict=True)
    ]


class VectorTable(NamedTuple):
    """All vectors of some files in memory, the columns that name them, and their files."""

    vectors: Vectors
    names: pyarrow.Table
    rows: np.ndarray
    files: np.ndarray

    def name(self, place: int) -> VectorName:
        """What names a row."""
        return name_at(self.names, place, int(self.rows[place]), int(self.files[place]))


def read_all(
    files: VectorFiles, on_rows: OnRows = ignore, *, wanted: np.ndarray | None = None
) -> VectorTable:
    """All vectors of the files, or those of the `wanted` rows, which ascend.

    Raises NoInputError if there are none.
    """
    head = files.head()
    width = head.vectors.shape[1]
    vectors, count = np.empty((0, width), np.float32), 0
    names, rows, numbers = [head.names.slice(0, 0)], [head.rows[:0]], [np.zeros(0, np.int32)]
    for block in files:
        on_rows(len(block.rows))
        places = slice(None) if wanted is None else np.isin(block.rows, wanted)
        found = block.rows[places]
        end = count + len(found)
        if end > len(vectors):
            vectors.resize((end + GROWTH, width), refcheck=False)
        vectors[count:end], count = block.vectors[places], end
        names.append(block.names if wanted is None else block.names.filter(places))
        rows.append(found)
        numbers.append(np.full(len(found), block.file, np.int32))
    table = pyarrow.concat_tables(names)
    return VectorTable(vectors[:count], table, np.concatenate(rows), np.concatenate(numbers))


def find_duplicates(
    table: VectorTable, min_similarity: float = THRESHOLD, *, on_rows: OnRows = ignore
) -> list[list[Hit]]:
    """The groups of near-duplicates, by their first rows.

    The members of a group are in the order of their rows, with their similarity to the first.
    `on_rows` is called with how many rows were compared since it was last called.
    """
    return members(table, duplicate_groups(table.vectors, min_similarity, on_rows))


def find_members(files: VectorFiles, groups: Sequence[np.ndarray]) -> list[list[Hit]]:
    """The members of groups of row numbers, which are read from the files."""
    if not groups:
        return []
    wanted = np.sort(np.concatenate(groups))
    table = read_all(files, wanted=wanted)
    return members(table, [np.searchsorted(table.rows, group) for group in groups])


def members(table: VectorTable, groups: Sequence[np.ndarray]) -> list[list[Hit]]:
    """The members of groups of places in the table."""
    return [
        [
            Hit(table.name(int(place)), float(similarity))
            for place, similarity in zip(
                group, similarities_to_first(table.vectors, group), strict=True
            )
        ]
        for group in groups
    ]
