"""The vectors most similar to each query, exactly, and groups of near-duplicates.

One float32 product scores a block, and its rounding depends on the block's shape. All rows within
the rounding error of a hit are scored again in float64, so that the result does not depend on the
size of the blocks; ties are in the order of row numbers.

Near-duplicates are rows connected by pairs at or above a similarity. All pairs are compared block
by block, first by an upper bound of their similarity that takes a sixth of the arithmetic: the
product of their parts in the HEAD directions with the most of the vectors' length, plus the product
of the lengths of the rest (Cauchy-Schwarz).

E  size of a vector · H  HEAD + 1 · K  hits of a query · N  vectors of a block · P  pairs ·
Q  queries
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgcli.errors import UsageError

Vectors = NDArray[np.float32]
RowNumbers = NDArray[np.int64]
Similarities = NDArray[np.float64]
#: The numbers of some rows and their normalised vectors (N, E).
Block = tuple[RowNumbers, Vectors]

#: Rows of a block: its scores for a few queries stay in the cache.
BLOCK_ROWS = 8192
QUERIES_AT_ONCE = 256
NO_ROW = -1


class Hits(NamedTuple):
    """The rows most similar to each query (Q, K) and their cosine similarities, best first.

    Where a query has fewer than K hits, the rest are NO_ROW (-1) and NaN.
    """

    rows: RowNumbers
    similarities: Similarities


def nearest(
    queries: ArrayLike, vectors: ArrayLike, k: int = 10, *, min_similarity: float | None = None
) -> Hits:
    """The `k` rows of `vectors` (N, E) most similar to each of the `queries` (Q, E).

    Both are normalised first. Ties are in the order of rows. Raises UsageError for vectors of
    another size, and for zero or non-finite vectors.
    """
    table = as_matrix(vectors)
    blocks = (
        (np.arange(first, min(first + BLOCK_ROWS, len(table))), normalised(rows, "vector", first))
        for first in range(0, len(table), BLOCK_ROWS)
        for rows in (table[first : first + BLOCK_ROWS],)
    )
    return nearest_in_blocks(normalised(queries, "query"), blocks, k, min_similarity)


def nearest_in_blocks(
    queries: Vectors, blocks: Iterable[Block], k: int, min_similarity: float | None = None
) -> Hits:
    """The hits of normalised queries (Q, E) in blocks with ascending row numbers.

    Memory does not grow with the number of vectors. Raises UsageError for another size of vectors.
    """
    if k < 1:
        raise UsageError(f"k must be at least 1, not {k}", hint="pass 1 or more")
    least = -np.inf if min_similarity is None else min_similarity
    # the most by which a product of normalised vectors in float32 differs from the exact one
    error = (queries.shape[1] + 4) * float(np.finfo(np.float32).eps) / 2
    rows = np.full((len(queries), k), NO_ROW, np.int64)
    similarities = np.full((len(queries), k), -np.inf)
    for numbers, vectors in blocks:
        if queries.shape[1] != vectors.shape[1]:
            raise UsageError(
                f"the queries have {queries.shape[1]} dimensions, the vectors {vectors.shape[1]}",
                hint="embed both with the same model",
            )
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            scores_QN = queries[start : start + QUERIES_AT_ONCE] @ vectors.T
            for query, scores_N in enumerate(scores_QN, start):
                floor = max(similarities[query, -1], least)
                if floor == -np.inf and len(scores_N) > k:
                    floor = np.partition(scores_N, -k)[-k] - error
                near = np.flatnonzero(scores_N >= floor - error)
                if not len(near):
                    continue
                exact = (vectors[near].astype(np.float64) * queries[query]).sum(axis=1)
                exact = np.concatenate(
                    [similarities[query], np.where(exact < least, -np.inf, exact)]
                )
                best = np.argsort(-exact, kind="stable")[:k]
                rows[query] = np.concatenate([rows[query], numbers[near]])[best]
                similarities[query] = exact[best]
    is_hit = np.isfinite(similarities)
    return Hits(np.where(is_hit, rows, NO_ROW), np.where(is_hit, similarities, np.nan))


def normalised(vectors: ArrayLike, name: str, first: int = 0) -> Vectors:
    """The vectors (N, E) in float32 with a length of 1; messages name them `name`, from `first`.

    Raises UsageError unless these are rows of real numbers, and for zero or non-finite vectors.
    """
    wide = float32(as_matrix(vectors))
    unit: Vectors = wide / lengths(wide, lambda number: f"{name} {first + number}")[:, None]
    return unit


def float32(values: NDArray[Any]) -> Vectors:
    """The values in float32, a copy only of other types; those out of range are infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def lengths(vectors: Vectors, name: Callable[[int], str]) -> Vectors:
    """The length of each vector; `name` is called for the number of a wrong one.

    Raises UsageError for a vector that is zero or not finite.
    """
    sizes: Vectors = np.sqrt(np.einsum("ne,ne->n", vectors, vectors))
    for number in np.flatnonzero(~(np.isfinite(sizes) & (sizes > np.finfo(np.float32).tiny))):
        is_zero = not vectors[number].any()
        why = "is zero" if is_zero else "has numbers that are not finite, or out of range"
        hint = "embed its input again, or remove the row"
        raise UsageError(f"{name(int(number))} {why}", hint=hint)
    return sizes


def as_matrix(vectors: ArrayLike) -> NDArray[Any]:
    """The vectors as an array (N, E). Raises UsageError unless they are rows of real numbers."""
    table = np.asarray(vectors)
    if table.ndim != 2 or table.dtype.kind not in "fiu" or not table.shape[1]:
        raise UsageError(
            f"an array of shape {table.shape} and type {table.dtype} is not rows of vectors",
            hint="pass an array of floats of two dimensions, a vector in each row",
        )
    return table


#: Near-duplicates of photographs begin at about this similarity.
THRESHOLD = 0.94
PAIR_ROWS = 2048
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
    bound_NH = vectors if len(vectors) <= PAIR_ROWS else bounding_vectors(vectors)
    buffer = np.empty((PAIR_ROWS, PAIR_ROWS), np.float32)
    for first in range(0, len(vectors), PAIR_ROWS):
        rows, bounds = (of[first : first + PAIR_ROWS] for of in (vectors, bound_NH))
        for second in range(first, len(vectors), PAIR_ROWS):
            others, other_bounds = (of[second : second + PAIR_ROWS] for of in (vectors, bound_NH))
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
    for first in range(0, len(vectors), PAIR_ROWS):
        turned = vectors[first : first + PAIR_ROWS] @ directions_EE
        length = np.linalg.norm(turned[:, :-HEAD], axis=1)[:, None]
        np.concatenate([turned[:, -HEAD:], length], axis=1, out=bound_NH[first : first + PAIR_ROWS])
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
