"""An export replaces an earlier one as a whole, and failures put the earlier one back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pgcli.results.publish import MARK
from tests.support.exporting import detected, exported, make_images, saved

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    return saved(tmp_path / "boxes.jsonl", detected(make_images(tmp_path / "images")))


def tree(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.suffix in (".txt", ""))
    return {str(file.relative_to(folder)): file.read_text() for file in files}


@pytest.mark.parametrize(
    ("problem", "code"),
    [(OSError(errno.EIO, "Input/output error"), 14), (KeyboardInterrupt(), 130)],
)
def test_earlier_export_is_put_back_where_the_new_one_cannot_be_named(
    capsys: Capture, boxes: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: int
) -> None:
    target = boxes.parent / "yolo"
    assert exported(capsys, boxes, "yolo", target)[0] == 0
    (target / "mine.txt").write_text("kept")
    before, names = tree(target), sorted(boxes.parent.iterdir())
    rename = Path.rename

    def fail(path: Path, new: Path) -> Any:
        if path.name.endswith(".part"):
            raise problem
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", fail)
    assert exported(capsys, boxes, "yolo", target, "--overwrite")[0] == code
    assert tree(target) == before
    assert sorted(boxes.parent.iterdir()) == names


@pytest.mark.parametrize("to", ["yolo", "coco"])
def test_part_that_a_killed_process_left_is_no_hindrance(
    capsys: Capture, boxes: Path, to: str
) -> None:
    target = boxes.parent / "made"
    left = boxes.parent / f".made.{os.getpid()}.part"  # of a process with the same number
    left.mkdir()
    (left / MARK).touch()
    assert exported(capsys, boxes, to, target)[0] == 0
    assert target.exists()
