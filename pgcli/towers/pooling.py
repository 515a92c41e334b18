"""Merges similar vectors of a page into their means, by Ward's method as in colpali-engine.

With a factor of 3 its authors measured 97.8 % of the nDCG@5 of all vectors.

V vectors of a page · E size of a vector · K clusters
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pooled(vector_VE: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """The means of clusters of similar vectors, with a length of 1: V // factor of them.

    As in colpali-engine, clusters are of rows of the matrix of cosine distances. They are in the
    order of their first vectors.
    """
    count = max(1, len(vector_VE) // factor)
    exact_VE = vector_VE.astype(np.float64)
    distance_VV = 1 - exact_VE @ exact_VE.T
    cluster_V = ward_clusters(distance_VV, count)
    mean_KE = np.zeros((count, vector_VE.shape[1]))
    np.add.at(mean_KE, cluster_V, exact_VE)
    mean_KE /= np.linalg.norm(mean_KE, axis=1, keepdims=True)
    return mean_KE.astype(np.float32)


def ward_clusters(points: Floats, count: int) -> NDArray[np.int64]:
    """The cluster of each point, of `count` clusters that Ward's method finds.

    The chain of nearest neighbours finds the same merges as the search for the closest pair, in
    another order; the lowest ones are applied.
    """
    squares = np.einsum("pd,pd->p", points, points)
    distances = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(distances, np.inf)
    sizes, chain = np.ones(len(points)), list[int]()
    remaining, merges = [*range(len(points))], list[tuple[float, int, int]]()
    while len(merges) < len(points) - 1:
        if not chain:
            while np.isinf(distances[remaining[-1]]).all():
                remaining.pop()
            chain.append(remaining[-1])
        last = chain[-1]
        nearest = int(distances[last].argmin())
        if len(chain) == 1 or distances[last, chain[-2]] > distances[last, nearest]:
            chain.append(nearest)
            continue
        before = chain[-2]
        height, total = distances[last, before], sizes[last] + sizes[before]
        merges.append((float(height), before, last))
        row = (sizes + sizes[last]) * distances[last] + (sizes + sizes[before]) * distances[before]
        row = (row - sizes * height) / (sizes + total)
        row[[last, before]] = np.inf
        distances[before] = distances[:, before] = row
        distances[last] = distances[:, last] = np.inf
        sizes[before] = total
        del chain[-2:]
    parents = np.arange(len(points))
    for _, first, second in sorted(merges, key=lambda merge: merge[0])[: len(points) - count]:
        roots = sorted((root_of(parents, first), root_of(parents, second)))
        parents[roots[1]] = roots[0]
    roots_of_points = [root_of(parents, point) for point in range(len(points))]
    return np.unique(roots_of_points, return_inverse=True)[1]


def root_of(parents: NDArray[np.int64], point: int) -> int:
    """The first point of the set of a point."""
    while parents[point] != point:
        point = parents[point]
    return point
