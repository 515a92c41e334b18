"""Runs ended by a signal, a full disk or a closed pipe: the rows are saved and can be resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from pgcli.output.reader import indexed_rows
from tests.support.runs import (
    EXAMPLES,
    MANY,
    PRETEND,
    ROOT,
    ROWS,
    finished,
    heed_signals,
    saved,
    started,
    wait_until,
)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_saves_rows_and_is_raised_again(tmp_path: Path, signum: int) -> None:
    output = tmp_path / "rows.jsonl"
    run = started("caption", *MANY, "-o", output)
    wait_until(lambda: len(saved(output)) > 3)
    run.send_signal(signum)
    stderr = run.communicate(timeout=60)[1].decode()
    assert run.returncode == -signum
    rows = len(saved(output))
    assert 3 < rows < ROWS
    assert (
        f"stopped after {rows} rows, saved in {output}; the same command resumes the run" in stderr
    )
    assert "Traceback" not in stderr
    assert finished("caption", *MANY, "-o", output).returncode == 0
    assert saved(output) == list(range(ROWS))


def test_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    begun = tmp_path / "begun"
    run = started("caption", *MANY, "-o", output, seconds=200, begun=begun)
    wait_until(begun.exists)
    run.send_signal(signal.SIGINT)
    time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    stderr = run.communicate(timeout=60)[1]
    assert run.returncode == -signal.SIGINT
    assert b"stopped" not in stderr  # as after the grace period


def test_shell_loop_ends_with_the_run(tmp_path: Path) -> None:
    script = f"for n in 1 2 3; do echo began $n; {PRETEND[0]} {PRETEND[1]} caption {EXAMPLES} "
    script += f"-o {tmp_path}/$n.jsonl --model demo; done"
    run = subprocess.Popen(
        ["bash", "-c", script],
        env=os.environ | {"PRETEND_SECONDS": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=heed_signals,
        text=True,
    )
    wait_until(lambda: saved(tmp_path / "1.jsonl"))
    os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert out == "began 1\n"


@pytest.mark.parametrize(
    "name", ["rows.jsonl", "rows/", pytest.param("rows.parquet", marks=pytest.mark.slow)]
)
def test_killed_run_is_resumed_exactly(tmp_path: Path, name: str) -> None:
    """After repeated SIGKILLs no row is lost or written twice, and the answers are the same."""
    whole = tmp_path / "whole.jsonl"
    assert finished("caption", *MANY[:5], "-o", whole, "--no-timing").returncode == 0
    output, kills = tmp_path / name, 0
    while True:
        run = started(
            "caption", *MANY[:5], "-o", f"{tmp_path}/{name}", "--no-timing", seconds=0.004
        )
        before = written(tmp_path)
        while run.poll() is None and written(tmp_path) == before:
            time.sleep(0.01)
        time.sleep(0.05 + 0.03 * (kills % 5))  # after some more rows
        run.kill()
        run.communicate(timeout=100)
        if run.returncode == 0:
            break
        kills += 1
        assert kills < 60
    assert kills > 1
    lines = whole.read_bytes()
    if output.suffix == ".jsonl":
        assert output.read_bytes() == lines
    else:
        rows = pq.read_table(output).to_pylist()
        assert rows == [json.loads(line) for line in lines.splitlines()]


def written(folder: Path) -> int:
    """The bytes of all rows in the output and its state folder."""
    return sum(file.stat().st_size for file in folder.rglob("*.jsonl"))


def test_closed_pipe_stops_the_model_soon(tmp_path: Path) -> None:
    run = started("caption", *MANY, seconds=1, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert json.loads(run.stdout.readline())["index"] == 0
    run.stdout.close()
    assert run.stderr is not None
    assert run.stderr.read() == b""
    assert run.wait(timeout=ROWS * 0.7) == -signal.SIGPIPE  # all rows take longer


def test_usr1_prints_progress(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run = started("caption", *MANY, "-o", output)
    wait_until(lambda: len(saved(output)) > 3)
    run.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    run.send_signal(signal.SIGTERM)
    stderr = run.communicate(timeout=60)[1].decode()
    assert f" of {ROWS} rows (" in stderr
    assert "/s, " in stderr


def test_slow_pipe_does_not_delay_the_end_after_a_signal(tmp_path: Path) -> None:
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
    assert b"stopped after 1 row, saved" in run.stderr.read()


def test_no_worker_outlives_a_killed_run(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run = started("caption", *MANY, "-o", output, "--workers", 2)
    wait_until(lambda: saved(output))
    workers = psutil.Process(run.pid).children(recursive=True)
    assert len(workers) == 2
    run.kill()
    run.communicate(timeout=100)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    mount, disk = shutil.which("mount"), tmp_path / "disk"
    disk.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if (
        mount is None
        or subprocess.run(command, capture_output=True, check=False, timeout=100).returncode
    ):
        pytest.skip("only who may mount a file system has one so small")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=100)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows/"])
def test_full_real_disk_costs_no_saved_row(disk: Path, name: str) -> None:
    output, filler = f"{disk}/{name}", disk / "filler"
    filler.write_bytes(b"x" * 155 * 1024)
    run = finished("caption", *MANY, "-o", output)
    stderr = run.stderr.decode()
    assert run.returncode == 14, stderr
    assert "No space left on device" in stderr
    count = re.search(r"stopped after (\d+) rows?, saved ", stderr)
    assert count is not None, stderr
    assert 0 < int(count[1]) < ROWS
    assert len(list(indexed_rows(Path(output)))) == int(count[1])
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True, timeout=100)
    assert finished("caption", *MANY, "-o", output).returncode == 0
    assert [row["index"] for _, row in indexed_rows(Path(output)) if row] == list(range(ROWS))


def test_read_only_disk_is_reported_before_loading(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=100)
    run = finished("caption", *MANY, "-o", disk / "rows.jsonl")
    assert run.returncode == 14
    assert b"rows.jsonl is not writable" in run.stderr
    assert b"Traceback" not in run.stderr


@pytest.mark.nightly
def test_removed_output_folder_is_noticed_in_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    run = started("caption", *MANY, "-o", folder / "rows.jsonl", seconds=0.5)
    wait_until(lambda: saved(folder / "rows.jsonl"))
    folder.rename(tmp_path / "elsewhere")
    stderr = run.communicate(timeout=60)[1].decode()
    assert run.returncode == 14, stderr
    assert len(saved(tmp_path / "elsewhere" / "rows.jsonl")) < ROWS // 2
    assert "Traceback" not in stderr
    (tmp_path / "elsewhere").rename(folder)
    assert finished("caption", *MANY, "-o", folder / "rows.jsonl").returncode == 0
    assert saved(folder / "rows.jsonl") == list(range(ROWS))


def test_fifty_errors_in_a_row_stop_a_resumable_run(tmp_path: Path) -> None:
    folder, output = tmp_path / "images", tmp_path / "rows.jsonl"
    folder.mkdir()
    for number in range(70):
        (folder / f"{number:02}.png").write_text("not an image")
    run = finished("caption", folder, "-o", output)
    assert run.returncode == 15
    assert b"50 errors in a row" in run.stderr
    assert saved(output) == list(range(50))
    assert finished("caption", folder, "-o", output).returncode == 3
    assert saved(output) == list(range(70))


# --- a folder that changes between runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    (images / "m").mkdir(parents=True)
    for name in ("b.png", "d.png", "m/x.png"):
        (images / name).write_bytes((EXAMPLES / "one.png").read_bytes())
    return images


def ids(output: Path) -> list[str]:
    return [json.loads(line)["id"] for line in output.read_bytes().splitlines()]


@pytest.mark.slow
def test_drawings_keep_their_names_after_a_kill(tmp_path: Path) -> None:
    folder, once, twice = tmp_path / "images", tmp_path / "once", tmp_path / "twice"
    folder.mkdir()
    rows = [{"image": str(EXAMPLES / "one.png"), "id": one} for one in ("a", "A", "a/b", "B", "b")]
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["detect", manifest, "--object", "x", "--allow-outside-root"]
    assert finished(*arguments, "-o", tmp_path / "1.jsonl", "--draw", once).returncode == 0
    for limit in ("2", "4", "9"):
        options = ["-o", tmp_path / "2.jsonl", "--draw", twice, "--limit", limit]
        assert finished(*arguments, *options).returncode == 0
    assert len(list(once.rglob("*.png"))) == 5
    names = {str(file.relative_to(once)) for file in once.rglob("*")}
    assert {str(file.relative_to(twice)) for file in twice.rglob("*")} == names


@pytest.mark.slow
def test_failed_overwrite_leaves_the_old_run_unchanged(tmp_path: Path, folder: Path) -> None:
    output = tmp_path / "rows.jsonl"
    assert finished("caption", folder, "-o", output).returncode == 0
    (folder / "a.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    state, before = tmp_path / "rows.jsonl.pgcli", output.read_bytes()
    run = started("caption", folder, "-o", output, "--overwrite", seconds=30)
    wait_until(lambda: len(list(state.glob("processes/*"))) == 2)
    run.kill()
    run.communicate(timeout=100)
    assert output.read_bytes() == before
    assert finished("caption", folder, "-o", output).returncode == 0
    assert ids(output) == ["b.png", "d.png", "m/x.png", "a.png"]
    assert finished("caption", folder, "-o", output, "--overwrite").returncode == 0
    assert ids(output) == ["a.png", "b.png", "d.png", "m/x.png"]
    assert len(list(state.glob("inputs/*"))) == 1
    (folder / "A.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    assert finished("caption", folder, "-o", output).returncode == 0
    assert ids(output)[-1] == "A.png"


def test_usr1_before_the_first_row_does_not_end_the_run(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run = started("caption", "-", "-o", output, stdin=subprocess.PIPE)
    wait_until(lambda: (tmp_path / "rows.jsonl.pgcli").exists())
    run.send_signal(signal.SIGUSR1)
    run.communicate(f"{EXAMPLES / 'one.png'}\n".encode(), timeout=60)
    assert run.returncode == 0


@pytest.mark.slow
def test_image_that_kills_a_run_is_an_error_row_of_the_next(tmp_path: Path, folder: Path) -> None:
    output = tmp_path / "rows.jsonl"
    code = "import sys; from tests.support.pretend import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "caption", folder, "-o", output, "--model", "demo"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PRETEND_POISON": "d.png"}
    first = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=100)
    assert first.returncode == -signal.SIGSEGV
    assert ids(output) == ["b.png"]
    second = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=100)
    assert second.returncode == 3, second.stderr
    assert ids(output) == ["b.png", "d.png", "m/x.png"]
    errors = [json.loads(line)["error"] for line in output.read_bytes().splitlines()]
    assert errors == [None, "worker_crashed", None]


def test_shard_without_rows_does_not_stop_the_others(tmp_path: Path) -> None:
    output, image = f"{tmp_path}/rows/", EXAMPLES / "one.png"
    run = finished("caption", image, "-o", output, "--shard", "1/2")
    assert run.returncode == 0
    assert b"the shard has no row of the input" in run.stderr
    assert finished("caption", image, "-o", output, "--shard", "0/2").returncode == 0
    assert pq.read_table(output).num_rows == 1
    assert finished("caption", image, "-o", output, "--shard", "1/2").returncode == 0


@pytest.mark.nightly
def test_built_in_model_gives_the_same_rows_after_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pgcli", "detect", *MANY[:6], "--object", "circle"]
    command += ["--model", "demo", "--batch-size", "8", "--quiet"]
    whole, output = tmp_path / "whole.jsonl", tmp_path / "rows.jsonl"
    subprocess.run([*command, "-o", whole], cwd=ROOT, check=True, timeout=100)
    for more in (3, 20):
        run = subprocess.Popen([*command, "-o", output], cwd=ROOT)
        rows = len(saved(output))
        wait_until(lambda enough=rows + more: len(saved(output)) >= enough)  # type: ignore[misc]
        run.kill()
        assert run.wait() == -signal.SIGKILL
    subprocess.run([*command, "-o", output], cwd=ROOT, check=True, timeout=100)
    expected, found = (
        [json.loads(line) for line in file.read_bytes().splitlines()] for file in (whole, output)
    )
    columns = ("index", "id", "answer", "tokens", "finish")
    assert [[row[name] for name in columns] for row in found] == [
        [row[name] for name in columns] for row in expected
    ]
    assert any(row["boxes"] for row in found)
    for one, other in zip(found, expected, strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        for mine, theirs in zip(one["boxes"], other["boxes"], strict=True):
            near = {name: pytest.approx(theirs[name], abs=1e-4) for name in ("score", "confidence")}
            assert mine == theirs | near


def test_shorter_standard_input_is_refused(tmp_path: Path) -> None:
    output, names = tmp_path / "rows.jsonl", [f"{file}\n" for file in sorted(EXAMPLES.iterdir())]

    def piped(lines: list[str], *more: str) -> int:
        run = started("caption", "-", "-o", output, *more, stdin=subprocess.PIPE, seconds=0)
        run.communicate("".join(lines).encode(), timeout=60)
        return run.returncode

    assert piped(names) == 0
    before = output.read_bytes()
    assert piped(names[:3]) == 13
    assert piped(names[:3], "--limit", "3") == 0
    assert output.read_bytes() == before
