"""`--join`: several runs of one command share a folder of Parquet files."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from copy import copy
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.job import loading
from pgcli.cli.main import main
from pgcli.sinks.chunk_writer import ChunkRow, ChunkWriter
from pgcli.state.lock import output_lock
from pgcli.state.state_folder import state_folder
from tests.support import pretend
from tests.support.runs import wait_until

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with twenty images and a broken one, and a model without loading."""
    monkeypatch.setattr(loading, "load_model", pretend.load_model)
    monkeypatch.chdir(tmp_path)
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
    files = {file.name: file.read_bytes() for file in Path("rows.pgcli/inputs").iterdir()}
    assert files == {file.name: file.read_bytes() for file in Path("alone.pgcli/inputs").iterdir()}
    assert main(["check", "rows/"]) == 0


def test_changed_image_of_a_complete_file_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    """By the process that resumes the run; those that join while it goes on rely on it."""
    assert caption("rows/", "--join", "--limit", "10") == 3
    Image.new("RGB", (9, 9)).save("photos/01.png")
    with output_lock(state_folder(Path("rows/")), part="-join-other"):
        assert caption("rows/", "--join", "--limit", "12") == 3
    assert caption("rows/", "--join") == 13
    assert "row 2 is of another image of that name" in capsys.readouterr().err


def test_runs_with_and_without_join_complete_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert caption("rows/", "--limit", "10") == 3
    assert caption("rows/", "--join", "--limit", "18") == 3
    assert caption("rows/", "--join") == 3
    assert caption("rows/") == 3
    assert pq.read_table("rows")["index"].to_pylist() == list(range(21))
    assert not list(Path("rows.pgcli").glob("*-join-*"))
    assert main(["status", "rows/", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["rows"], status["lost"]) == ("complete", 21, [])


def test_run_alone_removes_what_a_killed_process_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("rows/", "--join", "--limit", "8") == 0
    owner = {"pid": 1, "host": socket.gethostname(), "chunks": [2]}
    Path("rows.pgcli/owner-join-dead.json").write_text(json.dumps(owner))
    assert caption("rows/") == 3
    assert main(["status", "rows/", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["lost"]) == ("complete", [])
    assert not list(Path("rows.pgcli").glob("*-join-*"))


def test_run_of_the_whole_output_is_refused_while_another_one_joins() -> None:
    with output_lock(state_folder(Path("rows/")), part="-join-other"):
        assert caption("rows/") == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--overwrite",), "--overwrite does not go with --join"),
        (("--shard", "0/2"), "--shard does not go with --join"),
        (("--view", "page.html"), "--view does not go with --join"),
        (("--retry-errors",), "leave out --join and --ray"),
    ],
)
def test_options_that_do_not_go_with_join_are_refused(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert caption("rows/", "--join", *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--join",), ("--shard", "0/1")])
def test_list_of_a_run_that_saved_nothing_is_made_anew(options: tuple[str, ...]) -> None:
    """Also where that run was killed, and left its list."""
    lists = state_folder(Path("rows/"))
    lists.mkdir()
    (lists / "files-0.0").write_bytes(b"00.png\0gone.png\0")
    (lists / "files-0.chunks").write_text('{"rows_per_file": 7}')
    words = [word for word in OPTIONS if word not in ("--rows-per-file", "4")]
    assert main(["caption", "photos", "-o", "rows/", *words, *options]) == 3
    assert pq.read_table("rows").num_rows == 21
    assert [file.name for file in Path("rows").iterdir()] == ["part-000000.parquet"]


def test_errors_of_a_joined_run_are_asked_again_by_a_run_alone() -> None:
    assert caption("rows/", "--join") == 3
    Image.new("RGB", (8, 8)).save("photos/07b.png")
    assert caption("rows/", "--retry-errors") == 0
    assert pq.read_table("rows")["error"].null_count == 21
    assert caption("rows/", "--join") == 0


def test_joined_run_begins_with_the_limits_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[object] = []
    limits = SimpleNamespace(summary=str, state_dict=dict, load_state_dict=found.append)
    assert caption("rows/", "--join", "--limit", "7") == 0
    progress = Path("rows.pgcli/progress-join.json")
    learnt = {"memory": {"cpu": {"prefill": 3}}}
    progress.write_text(json.dumps(json.loads(progress.read_text()) | learnt))
    monkeypatch.setattr(pretend.Engine, "batch_limits", limits)
    assert caption("rows/", "--join") == 3
    assert found == [{"prefill": 3}]


def test_joined_run_stops_when_too_many_rows_have_errors() -> None:
    for number in range(8, 16):
        Path(f"photos/{number:02}.png").write_bytes(b"no image")
    assert caption("rows/", "--join", "--max-errors", "2") == 15
    assert 0 < len(list(Path("rows").iterdir())) < 6
    assert caption("rows/", "--join", "--max-errors", "100%") == 3


@pytest.mark.parametrize(("limit", "others"), [("8", 2), ("6", 4)])
def test_of_two_limits_at_one_time_the_longer_file_stays(
    limit: str, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ChunkWriter.write

    def write_after_another_process(writer: ChunkWriter, number: int, rows: list[ChunkRow]) -> None:
        if number == 1:
            other = copy(writer)
            other._store = copy(writer._store)
            other._store.chunks = {}
            write(other, number, (rows * 2)[:others])
        write(writer, number, rows)

    monkeypatch.setattr(ChunkWriter, "write", write_after_another_process)
    assert caption("rows/", "--join", "--limit", limit) == 0
    assert pq.read_table("rows/part-000001.parquet").num_rows == 4
    inputs = [Path(f"rows.pgcli/inputs/{number:06}").stat().st_size for number in range(2)]
    assert inputs[0] == inputs[1]


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
    assert not list(Path("rows.pgcli").glob("*-join-*"))
