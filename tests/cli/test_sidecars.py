"""--sidecar: each image has a text file of its own."""

from __future__ import annotations

import json
import os
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


def test_each_image_has_a_sidecar_and_errors_have_none(folder: Path) -> None:
    run = finished("caption", folder, "--sidecar", ".txt", stdout=subprocess.PIPE)
    assert run.returncode == 3
    assert texts(folder).keys() == ALL
    for text in texts(folder).values():
        assert text.startswith("an image of ")
        assert text.endswith("\n")
    assert b"5 files ending in .txt" in run.stderr
    assert not list(folder.rglob(".pgcli*"))
    assert len(run.stdout.splitlines()) == 6


def test_existing_sidecars_are_kept_without_overwrite(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not to be touched")
    (folder / "b.txt").symlink_to(elsewhere)
    run = finished("caption", folder, "--sidecar", ".txt")
    assert (folder / "a.txt").read_text() == "mine"
    assert b"3 files ending in .txt; 2 that exist are kept" in run.stderr
    finished("caption", folder, "--sidecar", ".txt", "--overwrite")
    assert (folder / "a.txt").read_text().startswith("an image of")
    assert not (folder / "b.txt").is_symlink()
    assert elsewhere.read_text() == "not to be touched"


def test_resumed_run_uses_the_same_sidecar_names(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    for limit in (1, 3, 99):
        finished("caption", folder, "--sidecar", ".caption", "-o", output, "--limit", limit)
    assert {name.replace(".caption", ".txt") for name in texts(folder, ".caption")} == ALL


def test_name_that_is_not_utf8_has_a_sidecar(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    name = os.fsencode(folder) + b"/c\xff\n.png"
    Path(os.fsdecode(name)).write_bytes(IMAGE)
    assert finished("caption", folder, "--sidecar", ".txt").returncode == 0
    assert Path(os.fsdecode(name.replace(b".png", b".txt"))).exists()


@pytest.mark.parametrize("twins", ["caf\u00e9 cafe\u0301", "Case case"])
def test_names_equal_on_some_file_systems_have_two_sidecars(tmp_path: Path, twins: str) -> None:
    first, second = sorted(twins.split())
    for name in (first, second):
        (tmp_path / f"{name}.png").write_bytes(IMAGE)
    assert finished("caption", tmp_path, "--sidecar", ".txt").returncode == 0
    assert texts(tmp_path).keys() == {f"{first}.txt", f"{second}.png.txt"}


def test_too_long_sidecar_name_costs_no_row(tmp_path: Path) -> None:
    for name in ("n" * 251, "o" * 247):
        (tmp_path / f"{name}.png").write_bytes(IMAGE)
    run = finished("caption", tmp_path, "--sidecar", ".caption", stdout=subprocess.PIPE)
    assert run.returncode == 0
    assert len(run.stdout.splitlines()) == 2
    assert texts(tmp_path, ".caption").keys() == {"o" * 247 + ".caption"}
    assert b"1 files ending in .caption; 1 not written, as no name was left" in run.stderr


def test_path_without_a_name_is_an_error_row(folder: Path) -> None:
    paths = b".\n/\n..\nno\0name.png\na.png/x\na.png\n"
    out = subprocess.PIPE
    with started("caption", "-", "--sidecar", ".txt", stdin=out, stdout=out, cwd=folder) as run:
        out, err = run.communicate(paths, timeout=60)
    assert b"Traceback" not in err
    codes = [json.loads(line)["error"] for line in out.splitlines()]
    assert codes == [*["not_a_regular_file"] * 3, "missing", "missing", None]
    assert texts(folder).keys() == {"a.txt"}


def test_images_of_a_manifest_have_sidecars_next_to_them(folder: Path, tmp_path: Path) -> None:
    manifest = folder / "m.jsonl"
    rows = [{"image": "sub/a.png"}, {"image": "sub/a.png"}, {"image": "b.PNG"}]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert finished("caption", manifest, "--sidecar", ".txt").returncode == 0
    assert texts(folder).keys() == {"sub/a.txt", "sub/a.png.txt", "b.txt"}


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


def test_unwritable_folder_ends_the_run(folder: Path) -> None:
    (folder / "a.txt").mkdir()
    run = finished("caption", folder, "--sidecar", ".txt", "--overwrite")
    assert run.returncode == 14
    assert b"cannot write" in run.stderr
