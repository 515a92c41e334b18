"""Runs killed at random times, in a separate process because it forks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_runs import HELD

ROOT = Path(__file__).parents[2]
KILLS = 60


@pytest.mark.slow
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
