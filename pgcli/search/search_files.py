"""Hits and groups of near-duplicates among the vectors of files, with the names of their rows."""

from __future__ import annotations

from collections.abc import Callable
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

    Memory does not grow with the number of vectors. `on_rows` is told how many rows were read since
    it was last called. Raises UsageError for files that are not vectors of the queries' size.
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


def read_all(files: VectorFiles, on_rows: OnRows = ignore) -> VectorTable:
    """All vectors of the files. Raises NoInputError if there are none."""
    width = files.head().vectors.shape[1]
    vectors, count = np.empty((0, width), np.float32), 0
    names, rows, numbers = [], [], []
    for block in files:
        end = count + len(block.rows)
        if end > len(vectors):
            vectors.resize((end + GROWTH, width), refcheck=False)
        vectors[count:end], count = block.vectors, end
        names.append(block.names)
        rows.append(block.rows)
        numbers.append(np.full(len(block.rows), block.file, np.int32))
        on_rows(len(block.rows))
    table = pyarrow.concat_tables(names)
    return VectorTable(vectors[:count], table, np.concatenate(rows), np.concatenate(numbers))


def find_duplicates(
    table: VectorTable, min_similarity: float = THRESHOLD, *, on_rows: OnRows = ignore
) -> list[list[Hit]]:
    """The groups of near-duplicates, by their first rows.

    The members of a group are in the order of their rows, with their similarity to the first.
    `on_rows` is told how many rows were compared since it was last called.
    """
    groups = duplicate_groups(table.vectors, min_similarity, on_rows)
    return [
        [
            Hit(table.name(int(row)), float(similarity))
            for row, similarity in zip(
                group, similarities_to_first(table.vectors, group), strict=True
            )
        ]
        for group in groups
    ]
