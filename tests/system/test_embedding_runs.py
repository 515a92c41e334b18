"""Runs of embed with many rows: killed and resumed, and at constant memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support import towers
from tests.support.runs import ROOT

IMAGES = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and some images."""
    towers.checkpoint_into(tmp_path / "model")
    noise = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = noise.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


def embed(folder: Path, rows: int, output: str) -> subprocess.Popen[bytes]:
    """A run over a manifest with so many rows."""
    lines = ["image", *(f"{number % IMAGES}.png" for number in range(rows))]
    (folder / "images.csv").write_text("\n".join(lines))
    words = ["embed", "images.csv", "--model", "model", "--device", "cpu", "--no-timing"]
    options = ["--workers", "0", "--batch-size", "16", "--quiet", "-o", output]
    command = [sys.executable, "-m", "pgcli", *words, *options]
    return subprocess.Popen(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.nightly
def test_killed_embed_has_the_rows_of_a_run_at_once(folder: Path) -> None:
    rows = 4000
    unfinished = folder / "rows.parquet.pgcli"
    for _ in range(2):
        run = embed(folder, rows, "rows.parquet")
        saved = sum(file.stat().st_size for file in unfinished.rglob("*.jsonl"))
        while run.poll() is None:
            time.sleep(0.02)
            now = sum(file.stat().st_size for file in unfinished.rglob("*.jsonl"))
            if now > saved + 100_000:
                run.kill()
        assert run.wait() == -9
    assert embed(folder, rows, "rows.parquet").wait() == 0
    assert embed(folder, rows, "once.parquet").wait() == 0
    found, once = (pq.read_table(folder / name) for name in ("rows.parquet", "once.parquet"))
    assert found.drop_columns("embedding").equals(once.drop_columns("embedding"))
    vectors = [np.stack(table["embedding"].to_numpy()) for table in (found, once)]
    assert np.allclose(*vectors, atol=1e-6)


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_embedded_rows(folder: Path) -> None:
    run = embed(folder, 100_000, "rows.parquet")
    process, sizes = psutil.Process(run.pid), []
    while run.poll() is None:
        time.sleep(1)
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            sizes.append(process.memory_info().rss)
    assert run.returncode == 0
    table = pq.ParquetFile(folder / "rows.parquet")
    assert table.metadata.num_rows == 100_000
    third = len(sizes) // 3
    assert max(sizes[third:]) < 1.25 * max(sizes[third : 2 * third])
