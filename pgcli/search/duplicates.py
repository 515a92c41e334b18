"""Groups of near-duplicates: rows connected by pairs at or above a similarity.

All pairs are compared block by block, first by an upper bound of their similarity that takes a
sixth of the arithmetic: the product of their parts in the HEAD directions with the most of the
vectors' length, plus the product of the lengths of the rest (Cauchy-Schwarz).

E  size of a vector · H  HEAD + 1 · N  vectors · P  pairs
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgcli.search.nearest import RowNumbers, Vectors, normalised

#: Near-duplicates of photographs begin at about this similarity.
THRESHOLD = 0.94
BLOCK_ROWS = 2048
HEAD = 128
SAMPLE_ROWS = 8192  # that choose the directions
ERROR = 1e-5  # of a bound in float32
#: The share of pairs at which comparing whole blocks is faster than comparing pair by pair.
MAX_NEAR = 1 / 64


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
    # for a few vectors, finding the directions takes longer than comparing all pairs
    bound_NH = vectors if len(vectors) <= BLOCK_ROWS else bounding_vectors(vectors)
    buffer = np.empty((BLOCK_ROWS, BLOCK_ROWS), np.float32)
    for first in range(0, len(vectors), BLOCK_ROWS):
        rows, bounds = (of[first : first + BLOCK_ROWS] for of in (vectors, bound_NH))
        for second in range(first, len(vectors), BLOCK_ROWS):
            others, other_bounds = (of[second : second + BLOCK_ROWS] for of in (vectors, bound_NH))
            block = buffer[: len(rows), : len(others)]
            np.matmul(bounds, other_bounds.T, out=block)
            if block.max() >= min_similarity - ERROR:
                pairs_2P = similar_pairs(rows, others, block, min_similarity)
                pairs_2P += np.array([[first], [second]])
                unite(parents, pairs_2P[:, pairs_2P[0] < pairs_2P[1]])
        on_rows(len(rows))
    return groups(parents)


def similar_pairs(
    rows: Vectors, others: Vectors, bounds: Vectors, min_similarity: float
) -> NDArray[np.int64]:
    """The pairs (2, P) of a row and another one that are similar, by bounds of all pairs."""
    is_near = bounds >= min_similarity - ERROR
    if np.count_nonzero(is_near) > is_near.size * MAX_NEAR:
        return np.stack(np.nonzero(rows @ others.T >= min_similarity))
    row_P, other_P = np.nonzero(is_near)
    similarity_P = np.einsum("pe,pe->p", rows[row_P], others[other_P])
    return np.stack([row_P, other_P])[:, similarity_P >= min_similarity]


def bounding_vectors(vectors: Vectors) -> Vectors:
    """Vectors (N, H) whose products are at least the similarities of `vectors` (N, E)."""
    if vectors.shape[1] <= HEAD:
        return vectors
    sample = vectors[:: -(-len(vectors) // SAMPLE_ROWS)].astype(np.float64)
    directions_EE = np.linalg.eigh(sample.T @ sample)[1].astype(np.float32)  # by ascending length
    bound_NH = np.empty((len(vectors), HEAD + 1), np.float32)
    for first in range(0, len(vectors), BLOCK_ROWS):
        turned = vectors[first : first + BLOCK_ROWS] @ directions_EE
        length = np.linalg.norm(turned[:, :-HEAD], axis=1)[:, None]
        np.concatenate(
            [turned[:, -HEAD:], length], axis=1, out=bound_NH[first : first + BLOCK_ROWS]
        )
    return bound_NH


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
