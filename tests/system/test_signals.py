"""A signal, a full disk or a closed pipe ends a run: its rows are saved, and it can resume."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgcli.output.reader import indexed_rows
from tests.support import forkserver
from tests.support.runs import EXAMPLES, MANY, ROWS, finished, saved, started, wait_until


def test_closed_pipe_stops_the_model_soon(tmp_path):
    run = started("caption", *MANY, seconds=1, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert json.loads(run.stdout.readline())["index"] == 0
    run.stdout.close()
    assert run.stderr is not None
    assert run.stderr.read() == b""
    assert run.wait(timeout=ROWS * 0.7) == -signal.SIGPIPE  # all rows take longer


def test_slow_pipe_does_not_delay_the_end_after_a_signal(tmp_path):
    output = tmp_path / "rows.jsonl"
    run = started("caption", "-", "-o", output, stdin=subprocess.PIPE)
    assert run.stdin is not None
    run.stdin.write(f"{EXAMPLES / 'one.png'}\n".encode())
    run.stdin.flush()
    wait_until(lambda: saved(output))
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == -signal.SIGTERM
    run.stdin.close()
    assert run.stderr is not None
    assert b"stopped with 1 row saved" in run.stderr.read()


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    mount, disk = shutil.which("mount"), tmp_path / "disk"
    disk.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if (
        mount is None
        or subprocess.run(command, capture_output=True, check=False, timeout=100).returncode
    ):
        pytest.skip("only a user who may mount a file system can make one so small")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=100)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows/"])
def test_full_real_disk_costs_no_saved_row(disk, name):
    output, filler = f"{disk}/{name}", disk / "filler"
    filler.write_bytes(b"x" * 155 * 1024)
    run = finished("caption", *MANY, "-o", output)
    stderr = run.stderr.decode()
    assert run.returncode == 14, stderr
    assert "No space left on device" in stderr
    count = re.search(r"stopped with (\d+) rows? saved", stderr)
    assert count is not None, stderr
    assert 0 < int(count[1]) < ROWS
    assert len(list(indexed_rows(Path(output)))) == int(count[1])
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True, timeout=100)
    assert finished("caption", *MANY, "-o", output).returncode == 0
    assert [row["index"] for _, row in indexed_rows(Path(output)) if row] == list(range(ROWS))


def test_read_only_disk_is_reported_before_loading(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=100)
    run = finished("caption", *MANY, "-o", disk / "rows.jsonl")
    assert run.returncode == 14
    assert b"is not writable" in run.stderr
    assert b"Traceback" not in run.stderr


def move_folder(output: Path) -> None:
    output.parent.rename(output.parent.with_name("elsewhere"))


def rotate(output: Path) -> None:
    output.rename(output.with_suffix(".1"))
    output.touch()


def extend(output: Path) -> None:
    with output.open("ab") as file:
        file.write(b"a line of another program\n")


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda output: os.truncate(output, 0), "truncated"),  # logrotate's copytruncate
        (lambda output: os.truncate(output, 300), "truncated"),
        (extend, "extended"),
        (rotate, "removed or replaced"),
        (Path.unlink, "removed or replaced"),
        (move_folder, "removed or replaced"),
    ],
)
def test_output_that_another_program_changes_ends_the_run(tmp_path, change, how):
    output, kept = tmp_path / "here" / "rows.jsonl", tmp_path / "elsewhere"
    output.parent.mkdir()
    run = started("caption", *MANY, "-o", output, seconds=0.1)
    wait_until(lambda: len(saved(output)) > 2)
    change(output)
    stderr = run.communicate(timeout=60)[1].decode()
    assert run.returncode == 14, stderr
    assert f"rows.jsonl was {how} by another program" in stderr
    assert "saved in" not in stderr
    assert "Traceback" not in stderr
    if kept.exists():
        kept.rename(output.parent)
    assert b"\0" not in (output.read_bytes() if output.exists() else b"")
    again = finished("caption", *MANY, "-o", output)
    if how == "extended":  # a line that no run wrote
        assert again.returncode == 13
        assert b"is not the row that its run saved" in again.stderr
        return
    assert again.returncode == 0
    assert saved(output) == list(range(ROWS))


def test_images_that_change_after_a_kill_are_detected(tmp_path):
    """Rows after the last sync are compared like the others."""
    folder, output = tmp_path / "images", tmp_path / "rows.jsonl"
    folder.mkdir()
    for number in range(40):
        shutil.copy(EXAMPLES / "one.png", folder / f"{number:02}.png")
    run = started("caption", folder, "-o", output, seconds=0.05)
    wait_until(lambda: len(saved(output)) > 5)
    run.kill()
    run.communicate(timeout=60)
    shutil.copy(EXAMPLES / "pair.png", folder / "03.png")
    resumed = finished("caption", folder, "-o", output)
    assert resumed.returncode == 13
    assert b"has changed: " in resumed.stderr
    assert b"03.png" in resumed.stderr


@pytest.mark.slow
def test_image_that_kills_a_run_is_an_error_row_of_the_next(tmp_path):
    (tmp_path / "images" / "m").mkdir(parents=True)
    for name in ("b.png", "d.png", "m/x.png"):
        shutil.copy(EXAMPLES / "one.png", tmp_path / "images" / name)
    words = ["caption", "images", "-o", "rows.jsonl", "--model", "demo"]
    environment = os.environ | {"PRETEND_POISON": "d.png"}
    first = forkserver.run(words, env=environment, cwd=tmp_path)
    assert first.returncode == -signal.SIGSEGV
    assert saved(tmp_path / "rows.jsonl") in ([], [0])  # images are decoded ahead of the rows
    second = forkserver.run(words, env=environment, cwd=tmp_path)
    assert second.returncode == 3, second.stderr
    rows = map(json.loads, (tmp_path / "rows.jsonl").read_bytes().splitlines())
    errors = [(row["id"], row["error"]) for row in rows]
    assert errors == [("b.png", None), ("d.png", "worker_crashed"), ("m/x.png", None)]
