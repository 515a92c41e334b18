"""`--engines`: several processes, one output with the rows of one engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pgcli.cli.main import main
from pgcli.errors import UsageError
from pgcli.run.workers.slots import EngineSlot, engine_slots
from tests.support.runs import EXAMPLES, many, wait_until

ROOT = Path(__file__).parents[2]
IMAGES = sorted((ROOT / "examples" / "images").glob("*.png"))
ROWS = 6 * len(list(EXAMPLES.iterdir()))


def command(output: Path, engines: int) -> list[str]:
    """Captions in chunks of eight rows."""
    words = ["caption", *many(6), "--model", "demo", "--no-timing", "-o", str(output)]
    return [sys.executable, "-m", "pgcli", *words, "--batch-size", "2", "--engines", str(engines)]


def finished(output: Path, engines: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(output, engines),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.nightly
def test_signal_to_all_finishes_rows_in_progress_and_the_run_resumes(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run = subprocess.Popen(
        command(output, 2), cwd=ROOT, stderr=subprocess.PIPE, text=True, process_group=0
    )
    wait_until(lambda: output.exists() and output.read_bytes().count(b"\n"))
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    _, said = run.communicate(timeout=120)
    assert run.returncode in (-signal.SIGINT, 0)  # 0: all rows were answered
    assert "Traceback" not in said
    assert "unexpected" not in said
    assert finished(output, 1).returncode == 0
    indices = [json.loads(line)["index"] for line in output.read_bytes().splitlines()]
    assert indices == list(range(ROWS))


def test_small_models_have_one_thread_for_each_engine() -> None:
    slots = partial(engine_slots, device="cpu", cores=4)
    assert slots(None, checkpoint_bytes=10**6, rows=10) == [EngineSlot(1)]
    assert slots(None, checkpoint_bytes=10**6, rows=10**6) == [EngineSlot(1)] * 4
    assert slots(2, checkpoint_bytes=10**6, rows=10) == [EngineSlot(1)] * 2
    assert slots(None, checkpoint_bytes=10**10, rows=10**6) == [EngineSlot(4)]
    assert slots(2, checkpoint_bytes=10**10, rows=10) == [EngineSlot(2)] * 2
    assert slots(8, checkpoint_bytes=10**10, rows=10) == [EngineSlot(1)] * 8
    with pytest.raises(UsageError, match="--device cuda:1 is one"):
        engine_slots(2, "cuda:1", 10**6, rows=10)


@pytest.mark.parametrize(
    ("rows", "cores", "engines"),
    [(499, 2, 1), (500, 2, 2), (500, 1, 1), (1000, 16, 4), (10**6, 64, 8)],
)
def test_engines_are_as_many_as_save_time(rows: int, cores: int, engines: int) -> None:
    assert len(engine_slots(None, "cpu", 10**6, rows=rows, cores=cores)) == engines


def test_each_gpu_has_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgcli.run.workers.slots.visible_gpus", lambda: 2)
    slots = partial(engine_slots, checkpoint_bytes=10**10, rows=10)
    assert slots(None, "auto") == [EngineSlot(1, "cuda:0"), EngineSlot(1, "cuda:1")]
    assert slots(1, "cuda") == [EngineSlot(1, "cuda:0")]
    assert slots(None, "cuda:1")[0].device == "cuda:1"
    assert main(["caption", str(IMAGES[0]), "--model", "demo", "--engines", "3"]) == 17
