"""The program from end to end: commands, their rows and exit codes."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from pgcli.inputs import Inventory
from pgcli.records import COLUMNS
from tests.support import awkward, forkserver
from tests.support.awkward import noisy

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "examples" / "images"
PROGRAM = (sys.executable, "-m", "pgcli")
DEMO = ("--model", "demo", "--device", "cpu", "--dtype", "float32")
LIMIT_SECONDS = 600  # longer than any run on a busy machine: a timeout means a hang

Row = dict[str, Any]
Done = subprocess.CompletedProcess[bytes]


def pgcli(*arguments: object, stdin: bytes = b"") -> Done:
    """A run of the program."""
    options: dict[str, Any] = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "cwd": ROOT}
    words = [os.fspath(word) if isinstance(word, Path) else str(word) for word in arguments]
    return forkserver.run(words, timeout=LIMIT_SECONDS, kind="real", input=stdin, **options)


def rows_of(done: Done, code: int = 0) -> list[Row]:
    """The rows on standard output of a run with this exit code and tidy messages."""
    assert_tidy(done, code)
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_tidy(done: Done, code: int) -> None:
    stderr = done.stderr.decode()  # raises on invalid UTF-8
    assert done.returncode == code, stderr
    assert "Traceback" not in stderr
    assert all(line.isprintable() for line in stderr.split("\n")), stderr
    assert all(line.startswith(("pgcli: ", "hint: ")) for line in stderr.splitlines()), stderr


# --- a folder of awkward files ---


@pytest.fixture(scope="module")
def awkward_folder(tmp_path_factory) -> tuple[Path, list[str | None]]:
    """The folder, and its files' expected results in input order."""
    folder = tmp_path_factory.mktemp("awkward")
    fates = awkward.make(folder)
    (folder / "noise").mkdir()
    for voice, data in noisy().items():
        (folder / "noise" / f"{voice}.tif").write_bytes(data)
        fates[f"noise/{voice}.tif"] = None if voice == "warning" else "decode_failed"
    paths = [os.path.relpath(item.path, folder) for item in Inventory.scan([str(folder)])]
    assert sorted(paths) == sorted(fates)
    return folder, [fates[path] for path in paths]


@pytest.fixture(scope="module")
def awkward_rows(awkward_folder) -> list[Row]:
    return rows_of(pgcli("caption", awkward_folder[0], *DEMO), code=3)


def test_readable_files_are_answered_and_broken_ones_are_errors(awkward_folder, awkward_rows):
    assert [row["error"] for row in awkward_rows] == awkward_folder[1]
    assert [row["index"] for row in awkward_rows] == list(range(len(awkward_rows)))
    for row in awkward_rows:
        assert tuple(row) == COLUMNS
        assert (row["answer"] is None) == (row["error"] is not None)
        assert (row["error_message"] is None) == (row["error"] is None)
        assert (row["task"], row["prompt"]) == ("caption", "caption en")


def test_paths_in_rows_open_their_images(awkward_rows):
    answered = [row for row in awkward_rows if row["error"] is None]
    paths = b"\0".join(os.fsencode(row["image"]) for row in answered)
    again = rows_of(pgcli("caption", "-", "-0", *DEMO, stdin=paths))
    assert [row["id"] for row in again] == [row["image"] for row in answered]
    assert [row["answer"] for row in again] == [row["answer"] for row in answered]


# --- pipes ---


@pytest.mark.parametrize(
    "workers",
    [pytest.param([], marks=pytest.mark.slow), ["--workers", "0"]],
    ids=["processes", "here"],
)
def test_row_of_a_slow_pipe_is_shown_before_the_next_arrives(workers):
    words = [sys.executable, "-m", "pgcli", "caption", "-", "--quiet", *workers]
    run = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert run.stdin is not None
    assert run.stdout is not None
    try:
        for index in range(2):
            run.stdin.write(f"{IMAGES / 'one.png'}\n".encode())
            run.stdin.flush()
            assert select.select([run.stdout], [], [], 100)[0]
            assert json.loads(run.stdout.readline())["index"] == index
        run.stdin.close()
        assert run.wait(timeout=100) == 0
    finally:
        run.kill()
        run.wait(timeout=60)


# --- memory ---


@pytest.fixture(scope="module")
def many_images(tmp_path_factory) -> Path:
    """A folder of 3,000 small images."""
    folder = tmp_path_factory.mktemp("many_images")
    for number in range(3000):
        colour = (number % 256, number // 256, 99)
        Image.new("RGB", (32, 32), colour).save(folder / f"{number:04}.png")
    return folder


# A leak of each image's pixels would take 9 MiB in a thousand rows. With workers, prefetched
# images take as much, so the bound of the contract is checked instead.
@pytest.mark.nightly
@pytest.mark.parametrize(("workers", "rows", "growth_mib"), [(0, 2000, 6), (2, 3000, 100)])
def test_memory_stays_flat_over_thousands_of_images(many_images, tiny, workers, rows, growth_mib):
    model = ("--model", str(tiny), "--device", "cpu", "--batch-size", "32")
    options = ("--max-new-tokens", "4", "--workers", str(workers), "--limit", str(rows))
    command = [*PROGRAM, "caption", str(many_images), *model, *options]
    resident = dict(sampled(command, every=100))
    assert len(resident) >= rows // 100 - 1
    resident.pop(rows, None)  # the end of a run imports the summary's code
    early = max(size for row, size in resident.items() if row <= 1000)
    assert max(resident.values()) - early < growth_mib * 2**20, resident


def sampled(command: list[str], *, every: int) -> Iterator[tuple[int, int]]:
    """Yield the resident bytes of the program and its workers, every so many rows."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        program = psutil.Process(running.pid)
        for count, _ in enumerate(running.stdout, start=1):
            with suppress(psutil.NoSuchProcess):  # the last rows are still in the pipe
                if count % every == 0:
                    yield count, resident_bytes(program)
    assert running.returncode == 0


def resident_bytes(program: psutil.Process) -> int:
    processes = (program, *program.children(recursive=True))
    return sum(process.memory_info().rss for process in processes)
