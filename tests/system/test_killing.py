"""Runs killed at random times, in a separate process because it forks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.fake_runs import HELD

ROOT = Path(__file__).parents[2]
KILLS = 60


def test_killed_runs_lose_and_repeat_no_row() -> None:
    command = [sys.executable, "-m", "tests.support.kill_runs", "--kills", str(KILLS)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    tallies = [json.loads(line) for line in run.stdout.splitlines()]
    assert sum(tally["kills"] for tally in tallies) >= KILLS
    assert len(tallies) == 5
    for tally in tallies:
        assert (tally["lost"], tally["twice"]) == (0, 0), tally
        assert tally["most_after_a_kill"] <= HELD + 1, tally
    assert sum(tally["repeated"] for tally in tallies) > 0
    assert sum(tally["reads"] for tally in tallies) > 0
