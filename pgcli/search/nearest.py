"""The vectors most similar to each query, found exactly in one pass over blocks of vectors.

A block is scored by one product in float32, whose rounding depends on the block's shape. Every row
that this rounding could have kept out is scored again in float64, so that the result does not
depend on the size of the blocks, and rows of equal similarity are in the order of their numbers.

E  size of a vector · K  hits of a query · N  vectors of a block · Q  queries
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgcli.errors import UsageError

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
Similarities = NDArray[np.float64]

#: Rows of a block: its scores for a few queries stay in the cache.
BLOCK_ROWS = 8192
QUERIES_AT_ONCE = 256
NO_ROW = -1


class Hits(NamedTuple):
    """The rows most similar to each query (Q, K) and their cosine similarities, best first.

    Where a query has fewer than K hits, the rest are NO_ROW (-1) and NaN.
    """

    rows: Rows
    similarities: Similarities


def nearest(
    queries: ArrayLike, vectors: ArrayLike, k: int = 10, *, min_similarity: float | None = None
) -> Hits:
    """The `k` rows of `vectors` (N, E) most similar to each of the `queries` (Q, E).

    Both are normalised first. Ties are in the order of rows. Raises UsageError for vectors of
    another size, and for those that are zero or not finite.
    """
    top = TopK(normalised(queries, "query"), k, min_similarity=min_similarity)
    table = np.asarray(vectors)
    check_matrix(table)
    for first in range(0, len(table), BLOCK_ROWS):
        block = normalised(table[first : first + BLOCK_ROWS], "vector", first)
        top.add(block, np.arange(first, first + len(block)))
    return top.hits()


class TopK:
    """The `k` best rows of each query among the blocks added so far; queries are normalised."""

    def __init__(self, queries: Vectors, k: int, *, min_similarity: float | None = None):
        if k < 1:
            raise UsageError(f"{k} hits were asked for", hint="ask for 1 or more")
        self._queries = queries
        self._exact = queries.astype(np.float64)
        self._floor = -np.inf if min_similarity is None else min_similarity
        self._rows: Rows = np.full((len(queries), k), NO_ROW, np.int64)
        self._similarities: Similarities = np.full((len(queries), k), -np.inf)

    def add(self, vectors: Vectors, rows: Rows) -> Rows:
        """Take normalised vectors (N, E) and their row numbers, which ascend from block to block.

        Returns the places in the block of the rows that are among the best now.
        """
        check_sizes(self._queries, vectors)
        entered = np.zeros(len(vectors), np.bool_)
        for start in range(0, len(self._queries), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            scores_QN = self._queries[part] @ vectors.T
            floor_Q = self._floors()[part] - rounding_error(vectors.shape[1])
            is_better_Q = scores_QN.max(axis=1, initial=-np.inf) >= floor_Q
            for number in np.flatnonzero(is_better_Q):
                places = self._candidates(scores_QN[number], floor_Q[number])
                kept = self._merge(start + int(number), vectors[places], rows[places])
                entered[places[kept]] = True
        return np.flatnonzero(entered)

    def hits(self) -> Hits:
        """The best rows so far."""
        found = np.where(self._rows == NO_ROW, np.nan, self._similarities)
        return Hits(self._rows.copy(), found)

    def _floors(self) -> Similarities:
        """The similarity that a later row must exceed, or have to be a tie, for each query."""
        return np.maximum(self._similarities[:, -1], self._floor)

    def _candidates(self, scores_N: Vectors, floor: float) -> Rows:
        """The places of the rows that may be among the best of the block, ascending."""
        places = np.flatnonzero(scores_N >= floor)
        k = self._rows.shape[1]
        if len(places) > k:
            among = scores_N[places]
            # the k-th best and a candidate may each be off by the rounding error
            least = np.partition(among, -k)[-k] - 2 * rounding_error(self._queries.shape[1])
            places = places[among >= least]
        return places

    def _merge(self, query: int, vectors: Vectors, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows are among the best of the query, with those found before."""
        exact = (vectors.astype(np.float64) * self._exact[query]).sum(axis=1)
        exact = np.where(exact >= self._floor, exact, -np.inf)
        similarities = np.concatenate([self._similarities[query], exact])
        all_rows = np.concatenate([self._rows[query], rows])
        best = np.argsort(-similarities, kind="stable")[: self._rows.shape[1]]
        best = best[np.isfinite(similarities[best])]
        self._similarities[query, : len(best)] = similarities[best]
        self._rows[query, : len(best)] = all_rows[best]
        is_kept = np.zeros(len(all_rows), np.bool_)
        is_kept[best] = True
        return is_kept[self._rows.shape[1] :]


def rounding_error(width: int) -> float:
    """The most by which a product of two normalised vectors in float32 differs from the exact."""
    return (width + 4) * float(np.finfo(np.float32).eps) / 2


def normalised(vectors: ArrayLike, name: str, first: int = 0) -> Vectors:
    """The vectors (N, E) in float32 with a length of 1; messages name them `name`, from `first`.

    Raises UsageError for a vector that is zero or not finite.
    """
    table = np.asarray(vectors)
    check_matrix(table)
    wide = float32(table)
    found = lengths(wide, lambda number: f"{name} {first + number}")
    unit: Vectors = np.divide(wide, found[:, None])
    return unit


def float32(values: NDArray[Any]) -> Vectors:
    """The values in float32, a copy only of other types; those out of range are infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def lengths(vectors: Vectors, name: Callable[[int], str]) -> Vectors:
    """The length of each vector; `name` is called for the number of a wrong one.

    Raises UsageError for a vector that is zero or not finite.
    """
    found: Vectors = np.sqrt(np.einsum("ne,ne->n", vectors, vectors))
    wrong = np.flatnonzero(~(np.isfinite(found) & (found > np.finfo(np.float32).tiny)))
    if len(wrong):
        is_zero = not vectors[wrong[0]].any()
        why = "is zero" if is_zero else "has numbers that are not finite, or out of range"
        raise UsageError(
            f"{name(int(wrong[0]))} {why}",
            hint="embed its input again, or leave the row out",
        )
    return found


def check_matrix(vectors: NDArray[np.generic]) -> None:
    """Raise UsageError for an array that is not rows of real numbers."""
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
        raise UsageError(
            f"an array of shape {vectors.shape} and type {vectors.dtype} is not rows of vectors",
            hint="pass an array of floats of two dimensions, a vector in each row",
        )


def check_sizes(queries: Vectors, vectors: Vectors) -> None:
    """Raise UsageError where queries and vectors have different sizes."""
    if queries.shape[1] != vectors.shape[1]:
        raise UsageError(
            f"the queries have {queries.shape[1]} dimensions, the vectors {vectors.shape[1]}",
            hint="embed both with the same model",
        )
