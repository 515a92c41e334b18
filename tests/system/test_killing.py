"""Runs killed at random times, in a separate process because it forks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_runs import HELD

TRAINING = "tests.support.kill_training"
ROOT = Path(__file__).parents[2]
KILLS = 60


@pytest.mark.nightly
def test_killed_runs_lose_and_repeat_no_row() -> None:
    command = [sys.executable, "-m", "tests.support.kill_runs", "--kills", str(KILLS)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert sum(report["kills"] for report in reports) >= KILLS
    assert len(reports) == 5
    for report in reports:
        assert (report["lost"], report["twice"]) == (0, 0), report
        assert report["most_repeated"] <= HELD + 1, report
    assert sum(report["repeated"] for report in reports) > 0
    assert sum(report["reads"] for report in reports) > 0


@pytest.mark.nightly
def test_killed_engines_and_commands_lose_and_repeat_no_row() -> None:
    command = [sys.executable, "-m", "tests.support.kill_engines", "--kills", str(KILLS)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stderr
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(reports) == 4
    assert [(report["lost"], report["twice"]) for report in reports] == [(0, 0)] * 4
    assert sum(report["kills_of_engines"] for report in reports) > KILLS // 4
    assert sum(report["kills_of_commands"] for report in reports) > KILLS // 4


@pytest.mark.parametrize(
    ("kills", "workers"),
    [
        pytest.param(2, 0, marks=pytest.mark.slow),
        pytest.param(10, 0, marks=pytest.mark.nightly),
        pytest.param(10, 2, marks=pytest.mark.nightly),
    ],
)
def test_killed_training_ends_with_the_same_weights(kills: int, workers: int) -> None:
    """Bit for bit, with each step in the metrics once, and no unfinished file."""
    command = [sys.executable, "-m", TRAINING, "--kills", str(kills), "--workers", str(workers)]
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
