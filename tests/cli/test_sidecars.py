"""--sidecar: each image has a text file of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.runs import EXAMPLES, finished, started

IMAGE = (EXAMPLES / "one.png").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.jpg", "a.png", "b.PNG", "sub/a.png", "c.tar.png"):
        (folder / name).write_bytes(IMAGE)
    (folder / "bad.png").write_text("not an image")
    return folder


def texts(folder: Path, ending: str = ".txt") -> dict[str, str]:
    found = [file for file in folder.rglob("*") if file.name.endswith(ending)]
    return {str(file.relative_to(folder)): file.read_text() for file in found}


ALL = {"a.txt", "a.png.txt", "b.txt", "sub/a.txt", "c.tar.txt"}


def test_resumed_run_uses_the_same_sidecar_names(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    for limit in (1, 3, 99):
        finished("caption", folder, "--sidecar", ".caption", "-o", output, "--limit", limit)
    assert {name.replace(".caption", ".txt") for name in texts(folder, ".caption")} == ALL


def test_path_without_a_name_is_an_error_row(folder: Path) -> None:
    paths = b".\n/\n..\nno\0name.png\na.png/x\na.png\n"
    out = subprocess.PIPE
    with started("caption", "-", "--sidecar", ".txt", stdin=out, stdout=out, cwd=folder) as run:
        out, err = run.communicate(paths, timeout=60)
    assert b"Traceback" not in err
    codes = [json.loads(line)["error"] for line in out.splitlines()]
    assert codes == [*["not_a_regular_file"] * 3, "missing", "missing", None]
    assert texts(folder).keys() == {"a.txt"}


@pytest.mark.parametrize(
    "options",
    [
        ("caption", "--sidecar", "txt"),
        ("caption", "--sidecar", ".png"),
        ("caption", "--sidecar", ".jsonl"),
        ("caption", "--sidecar", "/x.txt"),
        ("caption", "--sidecar", "."),
        ("ask", "--prompt", "a", "--prompt", "b", "--sidecar", ".txt"),
    ],
)
def test_invalid_sidecar_options_are_refused(folder: Path, options: tuple[str, ...]) -> None:
    command, *rest = options
    run = finished(command, folder, *rest)
    assert run.returncode == 2
    assert b"--sidecar" in run.stderr
    assert not texts(folder)


def images(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(IMAGE)
    return folder


def test_images_with_a_text_are_not_asked(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos", "a.png", "b.png", "c.png")
    (folder / "a.txt").write_text("mine")
    run = finished("caption", folder, "--sidecar", ".txt", stdout=subprocess.PIPE)
    assert [json.loads(line)["id"] for line in run.stdout.splitlines()] == ["b.png", "c.png"]
    assert b"2 files ending in .txt; 1 that exists is kept; 1 image is not asked" in run.stderr
    run = finished("caption", folder, "--sidecar", ".txt", stdout=subprocess.PIPE)
    assert (run.returncode, run.stdout) == (0, b"")
    assert b"0 files ending in .txt; 3 that exist are kept; 3 images are not asked" in run.stderr
    names = "".join(f"{folder / name}\n" for name in ("a.png", "b.png")).encode()
    pipe = subprocess.PIPE
    with started("caption", "-", "--sidecar", ".txt", stdin=pipe, stdout=pipe) as piped:
        out, err = piped.communicate(names, timeout=60)
    assert (piped.returncode, out) == (0, b"")
    assert b"0 files ending in .txt; 2 that exist are kept" in err


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.parquet", "rows/"])
def test_resuming_writes_texts_of_saved_rows(tmp_path: Path, output: str) -> None:
    folder = images(tmp_path / "photos", *(f"{name}.png" for name in "abcde"))
    (folder / "b.png").write_text("not an image")
    options = ("-o", f"{tmp_path}/{output}")
    finished("caption", folder, *options, "--limit", 3)
    assert texts(folder) == {}
    assert finished("caption", folder, *options, "--sidecar", ".txt").returncode == 3
    assert texts(folder).keys() == {"a.txt", "c.txt", "d.txt", "e.txt"}
    (folder / "c.txt").unlink()
    run = finished("caption", folder, *options, "--sidecar", ".txt", "--prepend", "sks ")
    assert run.returncode == 3
    assert texts(folder)["c.txt"].startswith("sks an image of")
    assert b"1 file ending in .txt; 3 that exist are kept" in run.stderr
    assert b"nothing to do: all 5 rows are saved" in run.stderr
