"""The command line on a CUDA device: its dtypes, and out-of-memory errors."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pgcli.cli.main import main
from pgcli.engine.recorded_step import CudaGraphs, StepRecorder
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


def test_float32_rows_are_those_of_the_cpu(tmp_path: Path) -> None:
    expected = captions(tmp_path / "cpu.jsonl", "--device", "cpu", "--dtype", "float32")
    rows = captions(tmp_path / "cuda.jsonl", "--device", "cuda", "--dtype", "float32")
    for row, other in zip(rows, expected, strict=True):
        assert [row[name] for name in SHARED] == [other[name] for name in SHARED]
        assert row["logprob"] == pytest.approx(other["logprob"], abs=1e-3)


def test_auto_is_bfloat16_and_answers_nearly_alike(tmp_path: Path) -> None:
    expected = captions(tmp_path / "float32.jsonl", "--device", "cuda", "--dtype", "float32")
    rows = captions(tmp_path / "auto.jsonl", "--device", "cuda")
    same = sum(row["answer"] == other["answer"] for row, other in zip(rows, expected, strict=True))
    assert same >= 0.8 * len(rows)
    assert all(row["decode_ms"] > 0 for row in rows)


@pytest.mark.filterwarnings("error::UserWarning")
def test_fused_and_recorded_steps_answer_as_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--device", "cuda", "--dtype", "float32", "--batch-size", "16")
    rows = captions(tmp_path / "recorded.jsonl", *options)
    monkeypatch.setattr("pgcli.engine.loader.optimize_for_device", lambda *given: None)
    expected = captions(tmp_path / "plain.jsonl", *options)
    for row, other in zip(rows, expected, strict=True):
        assert [row[name] for name in SHARED] == [other[name] for name in SHARED]
        assert row["logprob"] == pytest.approx(other["logprob"], abs=1e-3)


@pytest.mark.filterwarnings("error::UserWarning")
def test_steps_are_recorded_again_after_all_recordings_were_dropped() -> None:
    """PyTorch does not record into the memory of graphs that are gone."""
    recorder = StepRecorder(CudaGraphs())
    number, numbers = torch.zeros((), device="cuda"), []
    for _ in range(3):
        for _ in range(4):
            numbers.append(recorder.run(lambda: number.add_(1) + 1, 1, (number,)).clone())
        assert all(recorder._recordings.values())
        recorder.drop()
    assert [int(one) for one in numbers] == list(range(2, 14))


@pytest.fixture
def limited_memory() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_real_oom_halves_the_batch_and_loses_no_row(tmp_path: Path, limited_memory: None) -> None:
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
