"""The exact search and the groups of near-duplicates, against plain numpy."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcli.errors import UsageError
from pgcli.search import duplicates, nearest
from pgcli.search.nearest import (
    ERROR,
    HEAD,
    bounding_vectors,
    duplicate_groups,
    groups,
    nearest_in_blocks,
    normalised,
    unite,
)

duplicates_module = sys.modules[duplicates.__module__]


def random_vectors(rows, width, seed=0):
    return normalised(np.random.default_rng(seed).standard_normal((rows, width)), "vector")


def reference(queries, vectors, k):
    """The best rows by all similarities in float64, ties in the order of rows."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, axis=1)


def test_hits_equal_a_full_comparison():
    queries, vectors = random_vectors(7, 32, 1), random_vectors(3000, 32)
    hits = nearest(queries, vectors, 5)
    rows, scores = reference(queries, vectors, 5)
    assert np.array_equal(hits.rows, rows)
    assert np.allclose(hits.similarities, scores, atol=1e-7)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 30),
    st.integers(1, 8),
    st.lists(st.integers(1, 40), max_size=6),
)
def test_hits_do_not_depend_on_the_blocks(seed, distinct, k, cuts):
    # few distinct vectors, so that most similarities are tied
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((distinct, 5))[random.integers(0, distinct, 60)]
    queries = random.standard_normal((3, 5))
    whole = nearest(queries, vectors, k)
    firsts = [0, *(min(first, 60) for first in np.cumsum(cuts).tolist()), 60]
    blocks = (
        (np.arange(first, end), normalised(vectors[first:end], "v"))
        for first, end in pairwise(firsts)
        if first < end
    )
    hits = nearest_in_blocks(normalised(queries, "query"), blocks, k)
    assert np.array_equal(hits.rows, whole.rows)
    assert np.array_equal(hits.similarities, whole.similarities, equal_nan=True)


def test_equal_vectors_are_hits_in_the_order_of_rows():
    vectors = np.repeat(random_vectors(1, 700), 20_000, axis=0)
    assert nearest(vectors[:1], vectors, 4).rows.tolist() == [[0, 1, 2, 3]]


def test_fewer_hits_than_asked_for_end_in_no_row():
    hits = nearest([[1.0, 0]], [[0, 1.0], [2.0, 0]], 4, min_similarity=0.5)
    assert hits.rows.tolist() == [[1, -1, -1, -1]]
    assert hits.similarities[0, 0] == 1
    assert np.isnan(hits.similarities[0, 1:]).all()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64"])
def test_vectors_of_other_types_and_lengths_are_normalised(dtype):
    vectors = (random_vectors(50, 8) * 40).astype(dtype)
    rows, scores = reference(*(normalised(v, "v") for v in (vectors[:2], vectors)), 3)
    hits = nearest(vectors[:2], vectors, 3)
    assert np.array_equal(hits.rows, rows)
    assert np.allclose(hits.similarities, scores, atol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0, 1e300, 1e-300])
def test_zero_and_infinite_vectors_raise_errors(wrong):
    vectors = np.ones((5, 3))
    vectors[3] = wrong
    with pytest.raises(UsageError, match="vector 3 "):
        nearest([[1, 0, 0]], vectors)


@pytest.mark.parametrize(
    "vectors", [np.ones(3), np.ones((2, 2, 2)), np.ones((2, 0)), np.ones((2, 4)), [["a", "b"]]]
)
def test_arrays_of_other_shapes_and_types_raise_errors(vectors):
    with pytest.raises(UsageError):
        nearest([[1.0, 0, 0]], vectors)


def connected_by_hand(similar):
    """Groups of a matrix of booleans, by a walk from each row."""
    left, groups = set(range(len(similar))), []
    while left:
        group, waiting = set(), [min(left)]
        while waiting:
            row = waiting.pop()
            if row in left:
                left.remove(row)
                group.add(row)
                waiting += np.flatnonzero(similar[row]).tolist()
        groups.append(sorted(group))
    return [group for group in groups if len(group) > 1]


def test_a_long_chain_is_one_component():
    parents = np.arange(100_000)
    unite(parents, np.stack([parents[1:], parents[:-1]]))
    assert [len(group) for group in groups(parents)] == [100_000]


@settings(max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(3, 48),
    st.sampled_from([0.5, 0.8, 0.94]),
    st.sampled_from([0, 1]),
)
def test_groups_do_not_depend_on_blocks_and_bounds(seed, width, least, max_near):
    random = np.random.default_rng(seed)
    centres = random_vectors(20, width, seed)[random.integers(0, 20, 90)]
    noise = random.choice([0, 0.1, 0.4], (90, 1)) / np.sqrt(width)
    vectors = normalised(centres + noise * random.standard_normal((90, width)), "vector")
    scores = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    similar = scores >= least
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates_module, "PAIR_ROWS", 16)
        patch.setattr(duplicates_module, "HEAD", 2)
        patch.setattr(duplicates_module, "MAX_NEAR", max_near)  # whole blocks, or pair by pair
        small = duplicate_groups(vectors, least)
    assert [group.tolist() for group in small] == connected_by_hand(similar)
    whole = duplicate_groups(vectors, least)
    assert [group.tolist() for group in small] == [group.tolist() for group in whole]


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_products_of_bounding_vectors_are_at_least_the_similarities(seed):
    vectors = random_vectors(200, 300, seed)
    vectors[::2] = normalised(vectors[::2] * (np.arange(300) < 60), "v")  # no length is left
    bounds = bounding_vectors(vectors)
    assert bounds.shape == (200, HEAD + 1)
    assert (bounds @ bounds.T >= vectors @ vectors.T - ERROR).all()
