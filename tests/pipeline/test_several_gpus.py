"""Several engines that share rows are as fast as each is alone: simulated on a virtual clock."""

import pytest

from benchmarks.several_gpus import WORKLOADS, alone, several

ROWS, GPUS = 2048, 3


@pytest.mark.parametrize("name", WORKLOADS)
def test_batches_of_engines_do_not_drain_between_ranges(name: str) -> None:
    workload = WORKLOADS[name]
    single, shared = alone(ROWS, workload), several(GPUS, GPUS * ROWS, workload)
    assert shared.pauses == 0
    assert shared.rate > 0.95 * GPUS * single.rate
