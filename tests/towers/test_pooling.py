"""Merging similar vectors: Ward's clusters, as an exhaustive search finds them."""

import numpy as np
import pytest

from pgcli.towers.pooling import pooled, ward_clusters
from tests.support.towers import unit


def clusters_by_search(points, count):
    """Join the two clusters that raise the sum of squares least, until `count` are left."""
    clusters = [[n] for n in range(len(points))]

    def rise(one, other):
        gap = points[one].mean(0) - points[other].mean(0)
        return len(one) * len(other) / (len(one) + len(other)) * (gap @ gap)

    while len(clusters) > count:
        pairs = [(i, j) for j in range(len(clusters)) for i in range(j)]
        first, second = min(pairs, key=lambda pair: rise(*(clusters[n] for n in pair)))
        clusters[first] += clusters.pop(second)
    return sorted(map(sorted, clusters))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 4, 12, 23, 24])
def test_clusters_are_those_of_an_exhaustive_search(seed, count):
    points = np.random.default_rng(seed).standard_normal((24, 5))
    cluster = ward_clusters(points, count)
    assert sorted(np.flatnonzero(cluster == n).tolist() for n in range(count)) == (
        clusters_by_search(points, count)
    )


def test_pooled_vectors_are_means_of_length_one_in_order():
    base = unit(4, 16)
    near = np.repeat(base, 3, axis=0) + np.random.default_rng(1).normal(0, 0.01, (12, 16))
    vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    result = pooled(vectors, 3)
    expected = vectors.reshape(4, 3, 16).mean(axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_equal_vectors_and_a_factor_above_their_number():
    same = np.tile(unit(1, 16), (10, 1))
    assert pooled(same, 3).shape == (3, 16)
    assert pooled(same, 60).shape == (1, 16)
