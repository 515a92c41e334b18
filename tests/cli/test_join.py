"""`--join`: several runs of one command share a folder of Parquet files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.main import main
from tests.support.runs import other_process, wait_until


@pytest.fixture(autouse=True)
def folder(pretended: None) -> None:
    """The current folder, with twenty images and a broken one."""
    Path("photos").mkdir()
    for number in range(20):
        Image.new("RGB", (8, 8 + number)).save(f"photos/{number:02}.png")
    Path("photos/07b.png").write_bytes(b"no image")


OPTIONS = ("--model", "demo", "--quiet", "--no-timing", "--rows-per-file", "4", "--workers", "0")


def caption(output: str, *options: str) -> int:
    return main(["caption", "photos", "-o", output, *OPTIONS, *options])


def test_rows_of_a_joined_run_are_those_of_a_run_alone() -> None:
    assert caption("alone/") == 3
    assert caption("rows/", "--join") == 3
    assert pq.read_table("rows") == pq.read_table("alone")
    assert [file.name for file in sorted(Path("rows").iterdir())] == [
        f"part-{number:06}.parquet" for number in range(6)
    ]
    assert main(["check", "rows/"]) == 0


def test_changed_image_of_a_complete_file_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("rows/", "--join", "--limit", "10") == 3
    Image.new("RGB", (9, 9)).save("photos/01.png")
    assert caption("rows/", "--join") == 13
    assert "photos/01.png has" in capsys.readouterr().err


def test_runs_with_and_without_join_complete_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert caption("rows/", "--limit", "10") == 3
    assert caption("rows/", "--join", "--limit", "18") == 3
    assert caption("rows/", "--join") == 3
    assert caption("rows/") == 3
    assert pq.read_table("rows")["index"].to_pylist() == list(range(21))
    assert not list(Path("rows.pgcli").glob("open/*"))
    assert main(["status", "rows/", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["rows"], status["lost"]) == ("complete", 21, [])


def test_run_of_the_whole_output_is_refused_while_another_one_joins() -> None:
    with other_process("rows/"):
        assert caption("rows/") == 12


def test_joined_run_stops_when_too_many_rows_have_errors() -> None:
    for number in range(8, 16):
        Path(f"photos/{number:02}.png").write_bytes(b"no image")
    assert caption("rows/", "--join", "--max-errors", "2") == 15
    assert 0 < len(list(Path("rows").iterdir())) < 6
    assert caption("rows/", "--join", "--max-errors", "100%") == 3


def test_errors_in_a_row_stop_a_joined_run_also_across_files() -> None:
    for number in range(54):
        Path(f"photos/a{number:02}.png").write_bytes(b"no image")
    assert caption("rows/", "--join") == 15
    assert pq.read_table("rows").num_rows == 72  # the fiftieth one is row 70


@pytest.mark.slow
def test_three_runs_share_the_rows_also_when_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert caption("alone/") == 3
    monkeypatch.setenv("PRETEND_SECONDS", "0.05")
    words = ["caption", "photos", "-o", "rows/", *OPTIONS, "--join"]
    program = [sys.executable, "-m", "tests.support.pretend", *words]
    runs = [subprocess.Popen(program, stderr=subprocess.PIPE) for _ in range(3)]
    wait_until(lambda: Path("rows").is_dir())
    runs[0].send_signal(signal.SIGKILL)
    ends = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [-signal.SIGKILL, 3, 3], ends
    assert pq.read_table("rows") == pq.read_table("alone")
    rows = chain.from_iterable(
        pq.read_table(file)["index"].to_pylist() for file in Path("rows").iterdir()
    )
    assert set(Counter(rows).values()) == {1}
    assert not list(Path("rows.pgcli").glob("open/*"))
