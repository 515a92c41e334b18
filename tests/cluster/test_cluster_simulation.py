"""A simulated cluster whose machines end all the time: the run loses little time and no chunk."""

from __future__ import annotations

from benchmarks.cluster_simulation import Cluster, simulate


def test_machines_that_end_cost_little_of_the_work() -> None:
    """Each machine ends twice in the run; `simulate` asserts that chunks are stored once."""
    cluster = Cluster(machines=10, images=2_000_000, failures=30.0, replacement=20, loading=5)
    found = simulate(cluster, 250)
    assert found.efficiency > 0.93
    assert 0 < found.lost < 0.02
    assert found.chunks == 8000


def test_larger_chunks_cost_more_at_the_end_of_a_run() -> None:
    cluster = Cluster(machines=10, images=500_000, failures=0, preemptions=0)
    assert simulate(cluster, 100).efficiency > simulate(cluster, 2000).efficiency + 0.02
