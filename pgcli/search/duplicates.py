"""Groups of near-duplicates: rows connected by pairs at or above a similarity.

All pairs are compared block by block, without a matrix of all similarities. The comparison is exact
and mostly done in few dimensions: after a rotation into the principal axes, the product of the
first D dimensions plus the product of the lengths of the rest is an upper bound of the similarity
(Cauchy-Schwarz), and only the pairs whose bound reaches the threshold are compared in full.

D  dimensions of the bound, with the length of the rest as its last · E  size of a vector
N  vectors
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgcli.search.components import Components
from pgcli.search.nearest import Rows, Similarities, Vectors, normalised, rounding_error

#: Near-duplicates of photographs begin at about this similarity.
THRESHOLD = 0.94
BLOCK_ROWS = 2048
SAMPLE_ROWS = 4096
#: A pair compared in full costs as much as this part of the products of a pair in a block.
PAIR_COST = 60.0
#: The most by which the rotation in float32 makes a bound smaller than the exact similarity.
ROTATION_ERROR = 1e-5

Pairs = tuple[Rows, Rows]


def duplicates(vectors: ArrayLike, min_similarity: float = THRESHOLD) -> list[Rows]:
    """The groups of two rows or more of `vectors` (N, E), by their first row; rows ascend.

    A group is a connected component: each member has another one that is at least
    `min_similarity` similar, though not every one. Vectors are normalised first. Raises UsageError
    for a vector that is zero or not finite.
    """
    return duplicate_groups(normalised(vectors, "vector"), min_similarity)


def duplicate_groups(
    vectors: Vectors, min_similarity: float, on_rows: Callable[[int], None] = lambda rows: None
) -> list[Rows]:
    """The groups of `duplicates` of normalised vectors.

    `on_rows` is called with how many rows were compared since it was last called.
    """
    bounds = bounding_vectors(vectors, min_similarity)
    components = Components(len(vectors))
    for first in range(0, len(vectors), BLOCK_ROWS):
        for other in range(first, len(vectors), BLOCK_ROWS):
            join_similar(components, vectors, bounds, (first, other), min_similarity)
        on_rows(len(vectors[first : first + BLOCK_ROWS]))
    return components.groups()


def similarities_to_first(vectors: Vectors, group: Rows) -> Similarities:
    """The similarity of each member of a group to its first, which has 1."""
    members = vectors[group].astype(np.float64)
    found: Similarities = (members * members[0]).sum(axis=1)
    found[0] = 1.0
    return found


def join_similar(
    components: Components,
    vectors: Vectors,
    bounds: Vectors,
    firsts: tuple[int, int],
    min_similarity: float,
) -> None:
    """Join the rows of two blocks, which begin with the rows `firsts`, that are similar."""
    blocks = [slice(first, first + BLOCK_ROWS) for first in firsts]
    scores, least = products(bounds, blocks), min_similarity - error(vectors)
    found = np.flatnonzero(scores >= least)
    if bounds is vectors or len(found) * PAIR_COST > scores.size:
        scores = scores if bounds is vectors else products(vectors, blocks)
        # no doubt about most, which need no comparison of their own
        sure = np.flatnonzero(scores >= min_similarity + error(vectors))
        components.join(*pairs_at(sure, scores, firsts))
        found = np.flatnonzero(scores >= least)
    pairs = components.apart(pairs_at(found, scores, firsts))
    for part in zip(*map(slices, pairs), strict=True):
        rows, others = components.apart(part)
        is_joined = is_similar(vectors[rows], vectors[others], min_similarity)
        components.join(rows[is_joined], others[is_joined])


def products(vectors: Vectors, blocks: list[slice]) -> Vectors:
    """The product of each row of a block with each row of the other."""
    scores: Vectors = vectors[blocks[0]] @ vectors[blocks[1]].T
    return scores


def pairs_at(places: Rows, scores: Vectors, firsts: tuple[int, int]) -> Pairs:
    """The pairs of rows at places of the scores of two blocks, each pair once."""
    rows, others = np.divmod(places, scores.shape[1])
    rows, others = rows + firsts[0], others + firsts[1]
    return rows[rows < others], others[rows < others]


def is_similar(one: Vectors, other: Vectors, min_similarity: float) -> NDArray[np.bool_]:
    """Which rows of one and the other reach the threshold, by products in float64."""
    scores = np.einsum("ne,ne->n", one, other)
    close = np.flatnonzero(np.abs(scores - min_similarity) <= error(one))
    found: NDArray[np.bool_] = scores >= min_similarity
    exact = (one[close].astype(np.float64) * other[close]).sum(axis=1)
    found[close] = exact >= min_similarity
    return found


def slices(rows: Rows) -> Iterator[Rows]:
    """The rows in slices of BLOCK_ROWS."""
    return (rows[first : first + BLOCK_ROWS] for first in range(0, len(rows), BLOCK_ROWS))


def error(vectors: Vectors) -> float:
    """The most by which a similarity or bound in float32 is smaller than the exact similarity."""
    return rounding_error(vectors.shape[1]) + ROTATION_ERROR


def bounding_vectors(vectors: Vectors, min_similarity: float) -> Vectors:
    """Vectors (N, D) whose products bound the similarities; the vectors themselves at worst.

    D is chosen by the products and full comparisons that it would cost on a sample.
    """
    width = vectors.shape[1]
    sample = vectors[:: max(1, len(vectors) // SAMPLE_ROWS)][:SAMPLE_ROWS]
    if len(vectors) <= BLOCK_ROWS:
        return vectors
    # the axes fit the rows that they are computed from better than others, which give the costs
    fitted = sample[::2].astype(np.float64)
    axes = np.linalg.eigh(fitted.T @ fitted)[1][:, ::-1].astype(np.float32)
    rotated = sample[1::2] @ axes
    sizes = sorted({max(1, width * part // 24) for part in (1, 2, 3, 4, 6, 8, 12)})
    costs = {size: cost(bound(rotated, size), width, min_similarity) for size in sizes}
    best = min(costs, key=lambda size: costs[size])
    if costs[best] > 0.9:
        return vectors
    parts = range(0, len(vectors), 4 * BLOCK_ROWS)
    return np.concatenate(
        [bound(vectors[first : first + 4 * BLOCK_ROWS] @ axes, best) for first in parts]
    )


def bound(rotated: Vectors, size: int) -> Vectors:
    """The first `size` dimensions, and the length of the others."""
    rest = np.sqrt(np.einsum("ne,ne->n", rotated[:, size:], rotated[:, size:]))
    return np.column_stack([rotated[:, :size], rest])


def cost(bounds: Vectors, width: int, min_similarity: float) -> float:
    """The time of comparing rows by these bounds, as part of that of comparing them in full."""
    share = float(np.mean(bounds @ bounds.T >= min_similarity)) - 1 / len(bounds)
    return float(bounds.shape[1] / width + min(1.0, max(share, 0.0) * PAIR_COST))
