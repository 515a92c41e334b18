"""The stages of benchmarks/gpu.py run on a CPU."""

import pytest

from benchmarks import gpu


@pytest.mark.nightly
@pytest.mark.parametrize("stage", gpu.SHARES)
def test_every_stage_runs_on_a_cpu(stage):
    from benchmarks.gpu_stages import STAGES, Setup

    found = dict(STAGES[stage](Setup.make("cpu", tiny=True)))
    assert found
    assert STAGES.keys() == gpu.SHARES.keys()
    if stage.startswith("turns"):
        programs = [program for program in found.values() if isinstance(program, dict)]
        assert {program["tokens as recorded"] for program in programs} == {1.0}
