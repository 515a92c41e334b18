"""benchmarks/gpu.py: its stages run on a CPU, and one that fails or hangs costs only itself."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from benchmarks import gpu
from pgcli.engine.oom import run_or_free

PROGRAM = """#!/bin/sh
case "$*" in
  *versions*) echo noise; echo '["torch", "2.13"]' ;;
  *parity*) echo '["first", 0.5]'; echo "a device is lost" >&2; exit 1 ;;
  *roofs*) echo '["large", {"rate": 700.123}]'; exec sleep 60 ;;
esac
"""


def test_results_stay_where_a_stage_fails_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, out = tmp_path / "python", tmp_path / "gpu.json"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(program))
    monkeypatch.setattr(gpu, "SHARES", {"versions": 30, "parity": 30, "roofs": 0.5})
    gpu.main(["--out", str(out), "--seconds", "1"])
    results = json.loads(out.read_text())
    assert results["versions"]["torch"] == "2.13"
    assert results["parity"]["first"] == 0.5
    assert results["parity"]["problem"] == "failed: a device is lost"
    assert results["roofs"]["large"] == {"rate": 700.123}
    assert results["roofs"]["problem"].startswith("ended after")
    printed = capsys.readouterr().out
    assert "rate 700.1" in printed


@pytest.mark.slow
def test_synchronizations_are_counted_by_the_calls_that_led_to_them() -> None:
    from benchmarks.gpu_stages import counting

    places: Counter[str] = Counter()
    with warnings.catch_warnings(), mock.patch("warnings.showwarning", counting(places)):
        warnings.simplefilter("always")
        for _ in range(2):
            run_or_free(lambda: warnings.warn("called a synchronizing operation", stacklevel=1))
    (place,) = places
    assert place.startswith("oom.py:")
    assert places[place] == 2


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
