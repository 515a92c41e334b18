"""The command line on a CUDA device: its dtypes, and out-of-memory errors."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pgcli.cli.main import main
from pgcli.engine.recorded_step import StepRecorder, cuda_graphs
from tests.support.runs import many

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]
SHARED = ("id", "prompt", "answer", "finish", "error")


def captions(output: Path, *options: str) -> list[dict[str, Any]]:
    sources = many(8)  # 96 images
    command = ["caption", *sources, "--model", "demo", "-o", str(output), "--quiet", *options]
    assert main(command) == 0
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_float32_rows_equal_the_cpus(tmp_path):
    expected = captions(tmp_path / "cpu.jsonl", "--device", "cpu", "--dtype", "float32")
    rows = captions(tmp_path / "cuda.jsonl", "--device", "cuda", "--dtype", "float32")
    for row, other in zip(rows, expected, strict=True):
        assert [row[name] for name in SHARED] == [other[name] for name in SHARED]
        assert row["logprob"] == pytest.approx(other["logprob"], abs=1e-3)


@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_narrow_dtypes_answer_nearly_alike(tmp_path, monkeypatch, dtype):
    if dtype == "float16":  # as on a GPU without bfloat16
        monkeypatch.setattr("pgcli.device.machine.BFLOAT16_CAPABILITY", (99, 0))
    expected = captions(tmp_path / "float32.jsonl", "--device", "cuda", "--dtype", "float32")
    rows = captions(tmp_path / "narrow.jsonl", "--device", "cuda", "--dtype", dtype)
    same = sum(row["answer"] == other["answer"] for row, other in zip(rows, expected, strict=True))
    assert same >= 0.8 * len(rows)
    assert all(row["decode_ms"] > 0 for row in rows)


@pytest.mark.filterwarnings("error::UserWarning")
def test_fused_and_recorded_steps_answer_as_plain_ones(tmp_path, monkeypatch):
    options = ("--device", "cuda", "--dtype", "float32", "--batch-size", "16")
    rows = captions(tmp_path / "recorded.jsonl", *options)
    monkeypatch.setattr("pgcli.engine.loader.optimize_part", lambda *given, **named: None)
    expected = captions(tmp_path / "plain.jsonl", *options)
    for row, other in zip(rows, expected, strict=True):
        assert [row[name] for name in SHARED] == [other[name] for name in SHARED]
        assert row["logprob"] == pytest.approx(other["logprob"], abs=1e-3)


@pytest.mark.filterwarnings("error::UserWarning")
def test_recordings_hold_after_others_are_gone():
    """A step with a cuBLAS workspace, which all graphs of a process share."""
    torch.manual_seed(0)
    x, weight = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) / 64
        for shape in ((64, 16384), (16384, 2048))
    )

    def results(recorder: StepRecorder) -> list[torch.Tensor]:
        runs = [recorder.run(lambda: (x @ weight).float(), 1, (x,)).clone() for _ in range(4)]
        assert all(recorder._recordings.values())
        return runs

    def disturb() -> None:
        """The effects of compiled models, and of reused memory."""
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.full((2**28,), torch.nan, device="cuda")

    expected = x.float() @ weight.float()
    kept, gone = (StepRecorder(cuda_graphs(x.device)) for _ in range(2))
    for _ in range(3):
        for first, second in ((gone, kept), (kept, gone)):
            for result in [*results(first), *results(second)]:
                torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
            disturb()
            gone.drop()
            disturb()
        kept.drop()


@pytest.fixture
def limited_memory() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_real_oom_halves_the_batch_and_loses_no_row(tmp_path, limited_memory):
    options = ("--device", "cuda", "--dtype", "float32", "--batch-size", "64")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    expected = captions(tmp_path / "whole.jsonl", *options)
    peak = torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.7 * peak / total)
    rows = captions(tmp_path / "limited.jsonl", *options)
    assert [row["answer"] for row in rows] == [row["answer"] for row in expected]
    assert max(row["batch"] for row in rows) < max(row["batch"] for row in expected)
