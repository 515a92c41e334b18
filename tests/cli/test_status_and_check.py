"""status and check of running, interrupted and tampered runs."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pgcli.checkpoints.files import folder_digests
from pgcli.errors import UsageError
from pgcli.run.request import Shard, parse_shard
from tests.support.runs import EXAMPLES, Command, finished, saved, started, wait_until
from tests.support.stores import used_store


def status(cli: Command, output: Path) -> dict[str, Any]:
    code, out, _ = cli("status", output, "--json")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.fixture(params=["rows.jsonl", "rows.parquet", "rows"])
def output(request, tmp_path) -> Path:
    return tmp_path / request.param


def named(output: Path) -> str:
    return str(output) if output.suffix else f"{output}/"


@pytest.mark.slow
def test_check_of_a_running_run_compares_its_rows_until_now(cli, output, tmp_path):
    images, state = tmp_path / "images", Path(f"{output}.pgcli")
    shutil.copytree(EXAMPLES, images)
    run = started("caption", images, "-o", named(output), seconds=1)
    wait_until((state / "owner.json").exists)
    assert cli("check", output) == (0, "the run is in progress and has saved no rows yet\n", "")
    wait_until(lambda: status(cli, output)["rows"] >= 3)
    code, out, err = cli("check", output)
    assert (code, out.startswith("the run is in progress; all ")) == (0, True), out + err
    assert " rows so far " in out
    first = sorted(images.iterdir())[0]
    first.write_bytes(first.read_bytes() + b"\0")
    code, out, err = cli("check", output)
    assert (code, f"{first} has changed\n") == (5, out), err
    run.kill()
    run.communicate(timeout=60)
    assert "is missing" in cli("check", output)[1]


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (lambda rows: rows[:3] + rows[4:], "row 4 has the id"),
        (lambda rows: [*rows[:3], *rows[2:]], "row 4 has the id"),
        (lambda rows: rows[:-1], "row 12 is missing"),
        (lambda rows: [*rows, rows[0]], "row 13 matches no input"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], "row 1 has the id"),
        (lambda rows: [rows[0].replace(b'"id":"', b'"id":"x'), *rows[1:]], "row 1 has the id 'x"),
        (lambda rows: [*rows[:5], b"{\n", *rows[6:]], "row 6 is truncated or damaged"),
        (lambda rows: [*rows[:-1], rows[-1][:-9]], "row 12 is truncated or damaged"),
    ],
)
def test_check_finds_tampered_rows(cli, tmp_path, tamper, expected):
    output = tmp_path / "rows.jsonl"
    assert finished("caption", EXAMPLES, "-o", output).returncode == 0
    output.write_bytes(b"".join(tamper(output.read_bytes().splitlines(keepends=True))))
    code, out, err = cli("check", output)
    assert code == 5
    assert expected in out
    assert ("the same command adds" in err) == (expected == "row 12 is missing")


def with_id(row: bytes) -> bytes:
    return row.replace(b'"id":"', b'"id":"x')


#: What another program does to saved rows; the exit code of a resume, and part of its message.
EDITS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "added twice": (lambda rows: [*rows[:3], *rows[2:]], 13, "row 4 is not the row"),
    "twice at the end": (lambda rows: [*rows, rows[-1]], 13, "row 13 is not the row"),
    "removed": (lambda rows: rows[:3] + rows[4:], 13, "row 4 is not the row"),
    "swapped": (lambda rows: [rows[1], rows[0], *rows[2:]], 13, "row 1 is not the row"),
    "an id": (lambda rows: [*rows[:5], with_id(rows[5]), *rows[6:]], 13, "row 6 has the id 'x"),
    "not JSON": (lambda rows: [*rows[:5], rows[5][:20] + b"}\n", *rows[6:]], 13, "row 6 is not"),
    "garbage": (lambda rows: [*rows, b"garbage\n"], 13, "row 13 is not the row"),
    "garbage without an end": (lambda rows: [*rows, b"garbage"], 13, "row 13 is not the row"),
    "an empty line": (lambda rows: [*rows, b"\n"], 13, "row 13 is not the row"),
    "torn by a kill": (lambda rows: [*rows[:-1], rows[-1][:40]], 0, "11 rows are saved"),
    "torn in its start": (lambda rows: [*rows[:-1], rows[-1][:3]], 0, "11 rows are saved"),
    "zeros of a power loss": (lambda rows: [*rows[:-1], bytes(99)], 0, "11 rows are saved"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_lines_are_not_resumed(tmp_path, edit):
    output, (change, code, message) = tmp_path / "rows.jsonl", EDITS[edit]
    assert finished("caption", EXAMPLES, "-o", output).returncode == 0
    edited = b"".join(change(output.read_bytes().splitlines(keepends=True)))
    output.write_bytes(edited)
    run = finished("caption", EXAMPLES, "-o", output)
    assert (run.returncode, message in run.stderr.decode()) == (code, True), run.stderr
    assert (output.read_bytes() == edited) == (code == 13)
    assert code == 13 or len(saved(output)) == 12


@pytest.mark.parametrize("order", [[0, 2, 3, 4], [0, 1, 1, 2, 3, 4], [1, 0, 2, 3, 4]])
def test_edited_files_of_a_folder_are_not_resumed(tmp_path, order):
    output = f"{tmp_path}/rows/"
    assert finished("caption", EXAMPLES, "-o", output, "--rows-per-file=5").returncode == 0
    file = sorted(Path(output).iterdir())[1]
    table = pyarrow.parquet.read_table(file)
    file.unlink()
    pyarrow.parquet.write_table(table.take(order), file)
    run = finished("caption", EXAMPLES, "-o", output, "--rows-per-file=5")
    assert run.returncode == 13
    assert "belongs to another input: row " in run.stderr.decode()


STATE = [
    *itertools.product(["run.json", "owner.json", "inputs/0.arrow"], ["missing", "cut"]),
    ("inputs/images", "missing"),
]


@pytest.mark.parametrize(("name", "how"), STATE)
def test_check_refuses_a_state_that_misses_a_file(cli, output, tmp_path, name, how):
    images, manifest = tmp_path / "images", tmp_path / "rows.csv"
    shutil.copytree(EXAMPLES, images)
    manifest.write_text("image\n" + "".join(f"images/{file.name}\n" for file in images.iterdir()))
    command = ["caption", manifest, "-o", named(output)]
    assert finished(*command).returncode == 0
    (images / "one.png").write_bytes((EXAMPLES / "few.jpg").read_bytes())
    file = Path(f"{output}.pgcli") / name
    data = file.read_bytes()
    file.unlink() if how == "missing" else file.write_bytes(data[: 24 if how == "cut" else 0])
    code, _, err = cli("check", named(output))
    assert (code, Path(name).name in err) == (13, True), err
    if name == "run.json":
        code, _, said = cli("status", named(output))
        assert (code, said) == (13, err)
        assert finished(*command).stderr.decode() == err
    if name == "inputs/0.arrow":
        assert finished(*command).returncode == 13


@pytest.mark.parametrize(
    ("source", "count"),
    [("rows.jsonl", "2 images"), ("s3://bucket/p/one.png", "1 image"), ("s3://bucket/p", None)],
)
def test_check_counts_the_images_at_urls_that_it_does_not_compare(cli, tmp_path, source, count):
    output, manifest = tmp_path / "answers.jsonl", tmp_path / "rows.jsonl"
    names = ("one.png", "few.jpg")
    lines = [json.dumps({"image": f"s3://bucket/p/{name}"}) for name in (*names, "missing.png")]
    manifest.write_text("\n".join(lines))
    with used_store() as files:
        files |= {f"bucket/p/{name}": (EXAMPLES / name).read_bytes() for name in names}
        words = ["--prompt", "a", "--prompt", "b", "-o", output, "--allow-urls"]
        run = finished("ask", source.replace("rows.jsonl", str(manifest)), *words)
        assert run.returncode in (0, 3)
        code, out, _ = cli("check", output)
    assert code == 0
    assert out.partition("not compared: ")[2] == (f"{count} at URLs\n" if count else "")


def test_check_compares_with_the_folder_of_the_last_command(cli, tmp_path):
    output, folder, moved = tmp_path / "rows.jsonl", tmp_path / "images", tmp_path / "moved"
    shutil.copytree(EXAMPLES, folder)
    assert finished("caption", folder, "-o", output).returncode == 0
    folder.rename(moved)
    assert cli("check", output)[0] == 2
    assert finished("caption", moved, "-o", output).returncode == 0
    assert cli("check", output)[0] == 0


@pytest.fixture
def piped(tmp_path) -> Path:
    """The output of a run of two prompts about four images from standard input."""
    names, output = tmp_path / "names", tmp_path / "rows.jsonl"
    names.write_text("\n".join(str(file) for file in sorted(EXAMPLES.iterdir())[:4]))
    with names.open() as lines:
        run = finished("ask", "-", "--prompt", "a?", "--prompt", "b?", "-o", output, stdin=lines)
    assert run.returncode == 0
    return output


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (lambda rows: rows[:2] + rows[4:], "row 3 is out of order"),
        (lambda rows: rows[:3] + rows[4:], "the run saved 8 rows, and 7 remain"),
        (lambda rows: rows[:3] + rows[2:], "row 4 is a duplicate"),
        (lambda rows: rows[2:4] + rows[:2] + rows[4:], "is out of order"),
        (lambda rows: rows[:-2], "the run saved 8 rows, and 6 remain"),
    ],
)
def test_check_of_standard_input_finds_tampered_rows(cli, piped, tamper, expected):
    code, out, _ = cli("check", piped)
    assert code == 0
    assert "not compared: ids and names of images" in out
    piped.write_bytes(b"".join(tamper(piped.read_bytes().splitlines(keepends=True))))
    code, out, _ = cli("check", piped)
    assert code == 5
    assert expected in out


# --- shards


ARRAY = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "6"}
AWS_BATCH = {"AWS_BATCH_JOB_ARRAY_INDEX": "0", "AWS_BATCH_JOB_ARRAY_SIZE": "2"}
GOOGLE_BATCH = {"BATCH_TASK_INDEX": "7", "BATCH_TASK_COUNT": "8"}
CLOUD_RUN = {"CLOUD_RUN_TASK_INDEX": "9", "CLOUD_RUN_TASK_COUNT": "10"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "11", "JOB_COMPLETIONS": "12"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}  # which runs once, whatever it starts


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (ARRAY, Shard(3, 4)),
        (ARRAY | {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "1"}, Shard(2, 4)),
        (ARRAY | STEP, Shard(3, 4)),
        (ARRAY | BATCH_SCRIPT, Shard(3, 4)),
        (STEP, Shard(1, 2)),
        (STEP | {"SLURM_NTASKS": "8"}, Shard(1, 2)),
        (TORCHRUN, Shard(5, 6)),
        (TORCHRUN | BATCH_SCRIPT, Shard(5, 6)),
        (AWS_BATCH, Shard(0, 2)),
        (GOOGLE_BATCH, Shard(7, 8)),
        (CLOUD_RUN, Shard(9, 10)),
        (KUBERNETES, Shard(11, 12)),
    ],
)
def test_shard_auto_reads_the_variables_of_schedulers(environment, found):
    assert parse_shard("auto", environment) == found


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("auto", {}, "no variables of a scheduler"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "3"}, "SLURM_ARRAY_TASK_COUNT is not set"),
        ("auto", ARRAY | {"SLURM_ARRAY_TASK_ID": "4"}, "_ID must be from 0 to 3, .*, not 4"),
        ("auto", ARRAY | {"SLURM_ARRAY_TASK_STEP": "2"}, "_STEP must be 1, not '2'"),
        ("auto", {"RANK": "0"}, "RANK is '0', but WORLD_SIZE is not set"),
        (
            "auto",
            {"RANK": "x", "WORLD_SIZE": "2"},
            "RANK must be a whole number of 0 or more, not 'x'",
        ),
        ("auto", {"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE must be"),
        ("auto", BATCH_SCRIPT, "SLURM_STEP_NUM_TASKS is not set"),
        ("auto", GOOGLE_BATCH | {"BATCH_TASK_INDEX": "8"}, "BATCH_TASK_COUNT is 8"),
        ("auto", KUBERNETES | {"JOB_COMPLETION_INDEX": "1\x1b[2J"}, r"not '1\\x1b\[2J'"),
        ("2/2", {}, "not '2/2'"),
        ("-1/2", {}, "must be auto or I/N"),
        ("1/0", {}, "must be auto or I/N"),
        ("0/" + "9" * 5000, {}, "must be auto or I/N"),
    ],
)
def test_invalid_shard_is_refused(text, environment, message):
    with pytest.raises(UsageError, match=message) as refused:
        parse_shard(text, environment)
    assert "--shard" in refused.value.hint


# --- which model


def test_any_byte_of_a_checkpoint_changes_its_identity(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "notes.md"):
        (folder / name).write_text(name)
    first = folder_digests(folder)
    (folder / "notes.md").write_text("other notes")
    assert folder_digests(folder) == first
    (folder / "config.json").write_text("config.jsoN")
    assert folder_digests(folder) != first
    moved = folder.rename(tmp_path / "moved")
    (moved / "config.json").write_text("config.json")
    assert folder_digests(moved) == first


def test_weights_edited_in_place_are_hashed_again_whatever_their_time_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model" / "model.safetensors"
    file.parent.mkdir()
    file.write_text("weights")
    before, first = file.stat(), folder_digests(file.parent)
    time.sleep(0.05)  # the clock of files is coarse
    with file.open("r+") as opened:
        opened.write("others!")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert folder_digests(file.parent) != first
