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


@pytest.mark.slow
def test_full_disk_costs_no_saved_row(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    limited = ["bash", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "bash"]
    run = subprocess.run(
        [*limited, *PRETEND, "caption", *MANY, "-o", output, "--model", "demo"],
        capture_output=True,
        check=False,
        timeout=100,
    )
    stderr = run.stderr.decode()
    assert run.returncode == 14, stderr
    rows = len(saved(output))
    assert rows > 5
    assert (
        f"stopped after {rows} rows, saved in {output}; the same command resumes the run" in stderr
    )
    assert "File too large" in stderr
    assert finished("caption", *MANY, "-o", output).returncode == 0
    assert saved(output) == list(range(ROWS))


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


def test_retry_errors_keeps_the_other_rows(tmp_path: Path) -> None:
    folder, output = tmp_path / "images", tmp_path / "rows.jsonl"
    folder.mkdir()
    for name in ("a.png", "c.png"):
        (folder / name).write_bytes((EXAMPLES / "one.png").read_bytes())
    (folder / "b.png").write_text("not an image")
    assert finished("caption", folder, "-o", output).returncode == 3
    again = finished("caption", folder, "-o", output)
    assert again.returncode == 3
    assert b"--retry-errors" in again.stderr
    before = output.read_bytes().splitlines()
    (folder / "b.png").write_bytes((EXAMPLES / "tall.jpg").read_bytes())
    assert finished("caption", folder, "-o", output, "--retry-errors").returncode == 0
    after = output.read_bytes().splitlines()
    assert [after[0], after[2]] == [before[0], before[2]]
    assert json.loads(after[1])["answer"].startswith("an image of")


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


@pytest.mark.nightly
def test_killed_and_resumed_shards_make_one_folder(tmp_path: Path) -> None:
    code = "import sys; from pgcli.state import shard; shard.CHUNK_ROWS = 7\n"
    code += "from tests.support.pretend import main; sys.exit(main())"
    output = f"{tmp_path}/rows/"

    def begun(number: int) -> subprocess.Popen[bytes]:
        arguments = ["caption", *MANY, "-o", output, "--model", "demo", "--no-timing"]
        command = [sys.executable, "-c", code, *arguments, "--shard", f"{number}/3"]
        environment = os.environ | {"PRETEND_SECONDS": "0.01"}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)

    running = [begun(number) for number in range(3)]
    time.sleep(1.2)
    running[1].kill()
    running[1].communicate(timeout=100)
    stderr = [one.communicate(timeout=120)[1] for n, one in enumerate(running) if n != 1]
    assert [one.returncode for n, one in enumerate(running) if n != 1] == [0, 0], stderr
    again = begun(1)
    assert again.wait(timeout=120) == 0
    again.communicate(timeout=100)
    rows = pq.read_table(output).to_pylist()
    assert [row["index"] for row in rows] == list(range(ROWS))


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


def test_new_files_follow_old_ones_and_removed_ones_keep_rows(tmp_path: Path, folder: Path) -> None:
    output = tmp_path / "rows.jsonl"
    assert finished("caption", folder, "-o", output, "--limit", 2).returncode == 0
    for name in ("a.png", "m/a.png", "c\udcff\n.png"):
        (folder / name).write_bytes((EXAMPLES / "one.png").read_bytes())
    (folder / "b.png").unlink()
    (folder / "m" / "x.png").unlink()
    assert finished("caption", folder, "-o", output).returncode == 3
    assert ids(output)[:5] == ["b.png", "d.png", "m/x.png", "a.png", "file:c%FF%0A.png"]
    errors = [json.loads(line)["error"] for line in output.read_bytes().splitlines()]
    assert errors == [None, None, "missing", None, None, None]
    assert saved(output) == list(range(6))
    before = output.read_bytes()
    assert finished("caption", folder, "-o", output).returncode == 3
    assert output.read_bytes() == before
    (folder / "z.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    assert finished("caption", folder, "-o", output).returncode == 3
    assert output.read_bytes().startswith(before)
    assert ids(output)[-1] == "z.png"


@pytest.mark.slow
def test_new_files_of_several_sources_follow_all_old_ones(tmp_path: Path, folder: Path) -> None:
    output, other = tmp_path / "rows.jsonl", tmp_path / "other"
    manifest = tmp_path / "more.jsonl"
    manifest.write_text("".join(manifest_lines(2)))
    other.mkdir()

    def add(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_bytes((EXAMPLES / "one.png").read_bytes())

    add("other/1.png", "x2.jpg", "x4.jpg")
    sources = ("images", "x*.jpg", "more.jsonl", "other")
    arguments = ("caption", *sources, "-o", output, "--allow-outside-root")
    assert finished(*arguments, cwd=tmp_path).returncode == 0
    first = ids(output)
    assert first[3:] == ["x2.jpg", "x4.jpg", "0", "1", "other/1.png"]
    add("images/a.png", "x3.jpg", "other/0.png")
    assert finished(*arguments, cwd=tmp_path).returncode == 0
    second = [*first, "images/a.png", "x3.jpg", "other/0.png"]
    assert ids(output) == second
    add("x1.jpg", "x5.jpg")
    (tmp_path / "x4.jpg").unlink()
    assert finished(*arguments, cwd=tmp_path).returncode == 0
    assert ids(output) == [*second, "x1.jpg", "x5.jpg"]
    assert saved(output) == list(range(len(second) + 2))
    before = output.read_bytes()
    assert finished(*arguments, cwd=tmp_path).returncode == 0
    assert output.read_bytes() == before
    check = [sys.executable, "-m", "pgcli", "check", str(output)]
    assert (
        subprocess.run(
            check, cwd=tmp_path, capture_output=True, check=False, timeout=100
        ).returncode
        == 0
    )
    add("other/zz.png")
    run = subprocess.run(check, cwd=tmp_path, capture_output=True, check=False, timeout=100)
    assert run.returncode == 5
    assert run.stdout == b"row 14 is missing: 'other/zz.png'\n"


def test_input_folder_with_other_files_is_refused(tmp_path: Path, folder: Path) -> None:
    output = tmp_path / "rows.jsonl"
    assert finished("caption", folder, "-o", output).returncode == 0
    other = tmp_path / "other"
    folder.rename(other)
    assert finished("caption", other, "-o", output).returncode == 13


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


def manifest_lines(rows: int) -> list[str]:
    image = str(EXAMPLES / "one.png")
    return [json.dumps({"image": image, "id": str(number)}) + "\n" for number in range(rows)]


def test_shorter_input_is_refused(tmp_path: Path) -> None:
    manifest, output = tmp_path / "m.jsonl", tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"image": str(EXAMPLES / "one.png"), "id": str(k)}) + "\n" for k in range(5)
    ]
    manifest.write_text("".join(lines))
    arguments = ("caption", manifest, "-o", output, "--allow-outside-root")
    assert finished(*arguments).returncode == 0
    manifest.write_text("".join(lines[:3]))
    run = finished(*arguments)
    assert run.returncode == 13
    assert b"m.jsonl has changed" in run.stderr
    assert len(saved(output)) == 5


def test_usr1_before_the_first_row_does_not_end_the_run(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run = started("caption", "-", "-o", output, stdin=subprocess.PIPE)
    wait_until(lambda: (tmp_path / "rows.jsonl.pgcli").exists())
    run.send_signal(signal.SIGUSR1)
    run.communicate(f"{EXAMPLES / 'one.png'}\n".encode(), timeout=60)
    assert run.returncode == 0


@pytest.mark.slow
def test_complete_file_is_kept_after_a_kill(tmp_path: Path) -> None:
    manifest, output = tmp_path / "m.jsonl", tmp_path / "rows.parquet"
    lines = [
        json.dumps({"image": str(EXAMPLES / "one.png"), "id": str(k)}) + "\n" for k in range(90)
    ]
    arguments = ("caption", manifest, "-o", output, "--allow-outside-root")
    manifest.write_text("".join(lines[:5]))
    assert finished(*arguments).returncode == 0
    manifest.write_text("".join(lines))
    run = started(*arguments)
    state = tmp_path / "rows.parquet.pgcli"

    def kept() -> int:
        return sum(len(saved(file)) for file in state.glob("open/*"))

    wait_until(lambda: kept() > 20)
    run.kill()
    run.communicate(timeout=100)
    rows = 5 + kept()
    assert f"{rows} rows are saved".encode() in finished(*arguments).stderr
    assert pq.read_table(output).column("id").to_pylist() == [str(k) for k in range(90)]


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


@pytest.mark.slow
def test_repeated_standard_input_resumes_the_run(tmp_path: Path) -> None:
    output, files = tmp_path / "rows.jsonl", sorted(EXAMPLES.iterdir())
    lines = "".join(f"{file}\n" for file in files).encode()

    def piped(data: bytes) -> subprocess.CompletedProcess[bytes]:
        run = started("caption", "-", "-o", output, stdin=subprocess.PIPE, seconds=0)
        _, err = run.communicate(data, timeout=60)
        return subprocess.CompletedProcess(run.args, run.returncode, b"", err)

    run = started("caption", "-", "-o", output, stdin=subprocess.PIPE)
    assert run.stdin is not None
    run.stdin.write(b"".join(lines.splitlines(keepends=True)[:5]))
    run.stdin.flush()
    wait_until(lambda: len(saved(output)) == 5)
    run.kill()
    run.communicate(timeout=100)
    before = output.read_bytes()
    other = piped(b"".join(reversed(lines.splitlines(keepends=True))))
    assert other.returncode == 13
    assert b"the input is not the one" in other.stderr
    assert output.read_bytes() == before
    assert piped(lines).returncode == 0
    assert output.read_bytes().startswith(before)
    assert ids(output) == [str(file) for file in files]
    assert piped(lines).returncode == 0
    assert saved(output) == list(range(len(files)))


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


@pytest.mark.nightly
def test_refused_run_leaves_the_output_to_its_owner(tmp_path: Path) -> None:
    """Runs are refused before and after the first row is saved; then new files are added."""
    folder, output = tmp_path / "images", tmp_path / "rows.jsonl"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    run = started("caption", folder, "-o", output, seconds=1)
    wait_until(lambda: list((tmp_path / "rows.jsonl.pgcli").glob("owner*")))
    for _ in range(3):
        again = finished("caption", folder, "-o", output)
        assert again.returncode == 12, again.stderr
    command = [sys.executable, "-m", "pgcli", "status", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=100)
    assert b"running" in done.stdout
    wait_until(lambda: saved(output))
    assert finished("caption", folder, "-o", output).returncode == 12
    run.communicate(timeout=60)
    assert run.returncode == 0
    assert saved(output) == list(range(6))
    (folder / "0 first.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    assert finished("caption", folder, "-o", output).returncode == 0
    assert ids(output)[-1] == "0 first.png"


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


@pytest.mark.slow
def test_existing_view_page_does_not_stop_a_resumed_run(tmp_path: Path) -> None:
    output, page = tmp_path / "rows.jsonl", tmp_path / "page.html"
    arguments = ("caption", *MANY[:3], "-o", output, "--view", page)
    run = started(*arguments)
    wait_until(lambda: len(saved(output)) > 3)
    run.kill()
    run.communicate(timeout=100)
    assert not page.exists()
    assert finished(*arguments).returncode == 0
    assert page.exists()
    page.unlink()
    assert finished(*arguments).returncode == 0, "all rows are saved, and the page is made"
    assert page.exists()
    assert finished(*arguments).returncode == 0
    page.write_text("of somebody else")
    other = finished("caption", *MANY[:3], "-o", tmp_path / "other.jsonl", "--view", page)
    assert other.returncode == 13
    assert b"another page with --view" in other.stderr
    same = tmp_path / "same.jsonl"
    assert finished("caption", *MANY[:3], "-o", same, "--view", same).returncode == 2
    assert not same.exists()
