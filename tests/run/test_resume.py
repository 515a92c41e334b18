"""A second command continues the output of the first: more rows, no row twice, or an error."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.support.stub_runs import Calls, die, finish, kinds, make_images, rows_of, start, whole

ROOT = Path(__file__).parents[2]
KINDS = kinds(5)
SOME = ("lines", "folder", "shard", "parquet of engines")
ALONE = [kind for kind in KINDS if kind != "shard"]


@pytest.fixture
def images(tmp_path) -> Path:
    make_images(tmp_path / "images", 8, broken=[3])
    (tmp_path / "run").mkdir()
    return tmp_path


def ids(rows: list[str]) -> list[str]:
    return [json.loads(row)["id"] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_growing_limit_gives_the_rows_of_a_full_run(images, kind):
    output, options = KINDS[kind]
    (images / "computed").touch()
    for limit, rows in ((3, 3), (2, 3), (8, 8), (13, 13), (None, 16)):
        more = {} if limit is None else {"limit": limit}
        assert finish(images / "run", output, **options | more)[0] in (0, 3)
        assert len(rows_of(images / "run", output)) == rows
    computed = sorted(map(int, (images / "computed").read_text().split()))
    assert computed == [*range(6), *range(8, 16)], "no row twice; image 3 is not an image"
    assert rows_of(images / "run", output) == whole(images, kind)


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("step", [21, pytest.param(3, marks=pytest.mark.nightly)])
def test_smaller_limit_keeps_rows_of_a_killed_run(images, kind, step):
    output, options = KINDS[kind]
    for number in range(30, 100, step):
        shutil.rmtree(images / "run")
        (images / "run").mkdir()
        start(images / "run", output, before=Calls(number, die), **options).wait()
        saved = rows_of(images / "run", output)
        code = finish(images / "run", output, limit=2, **options)[0]
        while code == 12:  # engines that are forks hold the lock of a killed command for a moment
            code = finish(images / "run", output, limit=2, **options)[0]
        assert code in (0, 3)
        assert set(saved) <= set(rows_of(images / "run", output)), number
        assert finish(images / "run", output, **options)[0] == 3
        assert rows_of(images / "run", output) == whole(images, kind)


@pytest.mark.parametrize("kind", SOME)
def test_new_images_follow_saved_ones(images, kind):
    output, options = KINDS[kind]
    assert finish(images / "run", output, **options)[0] == 3
    before = rows_of(images / "run", output)
    for name in ("-1.png", "002b.png", "9.png"):
        Image.new("RGB", (9, 9)).save(images / "images" / name)
    code, said = finish(images / "run", output, **options)
    after = rows_of(images / "run", output)
    assert (code, after[: len(before)]) == (3, before), said
    assert ids(after)[len(before) :: 2] == ["-1.png", "002b.png", "9.png"]


@pytest.mark.parametrize("kind", SOME)
def test_rows_of_removed_images_are_kept_with_a_notice(images, kind):
    output, options = KINDS[kind]
    assert finish(images / "run", output, **options)[0] == 3
    before = rows_of(images / "run", output)
    (images / "images/002.png").unlink()
    code, said = finish(images / "run", output, **options)
    assert "2 rows belong to images that were removed from the input" in said
    assert (code, rows_of(images / "run", output)) == (3, before)


@pytest.mark.parametrize("kind", SOME)
def test_changed_image_exits_with_13_but_a_repaired_one_does_not(images, kind):
    output, options = KINDS[kind]
    assert finish(images / "run", output, **options)[0] == 3
    before = rows_of(images / "run", output)
    Image.new("RGB", (30, 30)).save(images / "images/003.png")
    assert finish(images / "run", output, **options)[0] == 3
    Image.new("RGB", (30, 30)).save(images / "images/004.png")
    code, said = finish(images / "run", output, **options)
    assert code == 13
    assert "has changed: ../images/004.png" in said
    assert rows_of(images / "run", output) == before


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_retry_survives_a_kill_at_any_write(images, kind, step):
    output, options = KINDS[kind]
    assert finish(images / "run", output, **options)[0] == 3
    good = {row for row in rows_of(images / "run", output) if '"error": null' in row}
    Image.new("RGB", (30, 30)).save(images / "images/003.png")
    rows = whole(images, kind, code=0)
    for number in range(1, 200, step):
        folder = images / "again"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(images / "run", folder)
        retry = {"retry_errors": True, **options}
        code = start(folder, output, before=Calls(number, die), **retry).wait()
        assert good <= set(rows_of(folder, output)), number
        code_again, said = finish(folder, output, **retry)
        assert code_again == 0, (number, said)
        assert rows_of(folder, output) == rows, (number, said)
        assert finish(folder, output, **options)[0] == 0
        if code == 0:
            assert number > 5
            return
        assert code == -signal.SIGKILL


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.nightly)])
def test_overwrite_survives_a_kill_at_any_write(images, kind, step):
    """Afterwards the output has rows of the old run or of the new, and the command ends it."""
    output, options = KINDS[kind]
    assert finish(images / "run", output, prompt=("old", "older", "oldest"), **options)[0] == 3
    old = set(rows_of(images / "run", output))
    rows = whole(images, kind)
    for number in range(1, 300, step):
        folder = images / "again"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(images / "run", folder)
        new = {"overwrite": True, **options}
        code = start(folder, output, before=Calls(number, die), **new).wait()
        found = set(rows_of(folder, output))
        assert found <= old or found <= set(rows), number
        code_again, said = finish(folder, output, **new)
        assert (code_again, rows_of(folder, output)) == (3, rows), (number, said)
        if code == 3:
            assert number > 10
            return
        assert code == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["lines", "parquet", "folder"])
def test_interrupted_overwrite_resumes_without_the_option(images, kind):
    output, options = KINDS[kind]
    assert finish(images / "run", output, prompt=("old",), **options)[0] == 3
    for number in range(30, 60, 10):  # the record is the new one
        folder = images / f"again{number}"
        shutil.copytree(images / "run", folder)
        start(folder, output, before=Calls(number, die), overwrite=True, **options).wait()
        code, said = finish(folder, output, **options)
        assert code == 3, (number, said)
        assert rows_of(folder, output) == whole(images, kind)


@pytest.mark.parametrize("step", [321, pytest.param(97, marks=pytest.mark.slow)])
def test_truncated_file_resumes_to_the_same_bytes(images, step):
    """A power loss may cut a file anywhere: whole rows stay, and the others are answered again."""
    folder = images / "run"
    finish(folder, "rows.jsonl")
    whole = (folder / "rows.jsonl").read_bytes()
    for size in [*range(0, len(whole), step), len(whole) - 1]:
        (folder / "rows.jsonl").write_bytes(whole[:size])
        finish(folder, "rows.jsonl")
        assert (folder / "rows.jsonl").read_bytes() == whole, size


@pytest.mark.nightly
def test_resuming_a_long_run_takes_less_than_its_start():
    program = [sys.executable, "benchmarks/resume.py", "--rows", "200000"]
    done = subprocess.run(
        program, cwd=ROOT, check=True, capture_output=True, text=True, timeout=600
    )
    begun, resumed, _ = map(float, re.findall(r"(\S+) s of processor time", done.stdout))
    assert 1.5 * resumed < begun
