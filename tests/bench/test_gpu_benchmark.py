"""The stages of benchmarks/gpu.py run on a CPU."""

from __future__ import annotations

import pytest

from benchmarks import gpu


@pytest.mark.nightly
@pytest.mark.parametrize("stage", gpu.SHARES)
def test_every_stage_runs_on_a_cpu(stage: str) -> None:
    from benchmarks.gpu_stages import STAGES, Setup

    found = dict(STAGES[stage](Setup.make("cpu", tiny=True)))
    assert found
    assert STAGES.keys() == gpu.SHARES.keys()
    if stage.startswith("turns"):
        programs = [one for one in found.values() if isinstance(one, dict)]
        assert {one["tokens as recorded"] for one in programs} == {1.0}
    if stage == "quantized":
        assert "failed" not in str(found)
        assert found["batch 2, 3 tokens, none"]["tokens as recorded"] == 1.0
    if stage == "parity":
        assert all(one["fused"] < 0.05 for one in found.values())
