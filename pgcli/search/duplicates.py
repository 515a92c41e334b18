"""Groups of near-duplicates: rows connected by pairs at or above a similarity.

All pairs are compared block by block, without a matrix of all similarities.

E  size of a vector · N  vectors · P  pairs
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgcli.search.nearest import RowNumbers, Vectors, normalised

#: Near-duplicates of photographs begin at about this similarity.
THRESHOLD = 0.94
BLOCK_ROWS = 2048


def duplicates(vectors: ArrayLike, min_similarity: float = THRESHOLD) -> list[RowNumbers]:
    """The groups of two rows or more of `vectors` (N, E), by their first row; rows ascend.

    A group is a connected component: each member has another one that is at least
    `min_similarity` similar, though not every one. Vectors are normalised first. Raises UsageError
    for a vector that is zero or not finite.
    """
    return duplicate_groups(normalised(vectors, "vector"), min_similarity)


def duplicate_groups(
    vectors: Vectors, min_similarity: float, on_rows: Callable[[int], None] = lambda rows: None
) -> list[RowNumbers]:
    """The groups of `duplicates` of normalised vectors.

    `on_rows` is called with how many rows were compared since it was last called.
    """
    parents = np.arange(len(vectors))
    for first in range(0, len(vectors), BLOCK_ROWS):
        rows = vectors[first : first + BLOCK_ROWS]
        for second in range(first, len(vectors), BLOCK_ROWS):
            similar = rows @ vectors[second : second + BLOCK_ROWS].T >= min_similarity
            pairs_2P = np.stack(np.nonzero(similar)) + np.array([[first], [second]])
            unite(parents, pairs_2P[:, pairs_2P[0] < pairs_2P[1]])
        on_rows(len(rows))
    return groups(parents)


def unite(parents: RowNumbers, pairs_2P: NDArray[np.int64]) -> None:
    """Put the rows of each pair into one set (union-find); every row's parent is its set's first.

    `parents` is changed in place.
    """
    while True:
        roots_2P = parents[pairs_2P]
        roots_2P = roots_2P[:, roots_2P[0] != roots_2P[1]]
        if not roots_2P.shape[1]:
            return
        # a root that has several smaller ones takes the smallest; the loop joins the others
        np.minimum.at(parents, roots_2P.max(axis=0), roots_2P.min(axis=0))
        while not np.array_equal(grandparents := parents[parents], parents):
            parents[:] = grandparents  # halves the longest path
        pairs_2P = roots_2P


def groups(parents: RowNumbers) -> list[RowNumbers]:
    """The sets of two rows or more by their first row, each in ascending order."""
    order = np.argsort(parents, kind="stable")
    starts = np.flatnonzero(np.diff(parents[order], prepend=-1))
    return [group for group in np.split(order, starts[1:]) if len(group) > 1]
