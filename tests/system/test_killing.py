"""Runs and training killed at random times; training in its own process, because it forks."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import kill_runs

TRAINING = "tests.support.kill_training"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kills", "workers"),
    [
        pytest.param(2, 0, marks=pytest.mark.slow),
        pytest.param(10, 0, marks=pytest.mark.nightly),
        pytest.param(10, 2, marks=pytest.mark.nightly),
    ],
)
def test_killed_training_ends_with_the_same_weights(kills, workers):
    """Bit for bit, with each step once in the metrics, and no unfinished file."""
    command = [sys.executable, "-m", TRAINING, str(kills), str(workers)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report == {
        "kills": kills,
        "exit_code": 0,
        "same_weights": True,
        "same_losses": True,
        "left_behind": [],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("kind", kill_runs.KINDS)
def test_killed_runs_write_the_rows_of_an_undisturbed_run(kind, tmp_path):
    if kill_runs.KINDS[kind].model == "Ray":
        pytest.importorskip("ray", reason="ray is not installed")
    with kill_runs.surroundings(kind) as cluster:
        counts = kill_runs.kill_often(kind, 20, random.Random(0), tmp_path, cluster)
        assert counts["amid rows"] > 0
