"""The vectors most similar to each query, exactly, in one pass over blocks of vectors.

One float32 product scores a block, and its rounding depends on the block's shape. All rows within
the rounding error of a hit are scored again in float64, so that the result does not depend on the
size of the blocks; ties are in the order of row numbers.

E  size of a vector · K  hits of a query · N  vectors of a block · Q  queries
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
