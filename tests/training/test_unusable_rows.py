"""Runs without a usable row end with 4 before the first step, and plans count usable rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from pgcli.cli.main import main
from tests.support.training import write_checkpoint

Run = Callable[[str], int]
FIXED = "--model tiny --workers 0 --device cpu --dtype float32 --steps 2 --batch-size 2 -o out"


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Runs `pgcli train` in a folder with a random model `tiny` and an image `good.png`."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "tiny")
    Image.new("RGB", (20, 20), "red").save("good.png")
    return lambda words: main(["train", *words.split()])


def rows(*names: str, **more: Any) -> list[dict[str, Any]]:
    known = {"prefix": "caption en", "suffix": "a star", "label": "star", "text": "a star"}
    return [{"image": name, **known, **more} for name in names]


def write(name: str, *lines: dict[str, Any]) -> str:
    Path(name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return name


def damaged(kind: str) -> str:
    """A manifest of images that cannot be read."""
    whole = Path("good.png").read_bytes()
    data = {"text": b"no image", "truncated": whole[: len(whole) - 30]}
    names = [f"{number}.png" for number in range(60 if kind == "60 missing" else 3)]
    if kind == "Parquet":
        cells = [{"bytes": b"no image", "path": name} for name in names]
        columns = {"image": cells, "prefix": ["caption en"] * 3, "suffix": ["a star"] * 3}
        parquet.write_table(pyarrow.table(columns), "rows.parquet")
        return "rows.parquet"
    for name in names if kind in data else ():
        Path(name).write_bytes(data[kind])
    return write("rows.jsonl", *rows(*names))


@pytest.mark.parametrize("kind", ["60 missing", "text", "truncated", "Parquet"])
def test_run_without_a_readable_image_is_an_error(run, capsys, kind):
    manifest = damaged(kind)
    for words in (FIXED, f"{FIXED} --dry-run"):
        assert run(f"{manifest} {words}") == 4
        err = capsys.readouterr().err
        assert "none of the images of the rows to train on can be read (first: 0.png: " in err
        assert "has what was trained" not in err
    assert not Path("out").exists()
    assert not Path("out.pgcli").exists()


def test_unusable_rows_are_listed_with_the_reason(run, capsys):
    box = {"label": "star", "xmin": 5, "ymin": 5, "xmax": 500, "ymax": 9}
    for row, reason in (
        (rows("../a.png")[0], "The path leads outside the folder"),
        ({"image": "good.png", "prefix": "detect star", "boxes": [box]}, "is outside of its image"),
    ):
        assert run(f"{write('rows.jsonl', row)} {FIXED} --dry-run") == 4
        err = capsys.readouterr().err
        assert f"no row of rows.jsonl is usable (first: {row['image']}: " in err
        assert reason in err
        assert "--prompt" not in err
    mixed = [rows("../a.png")[0], {"image": "good.png", "question": "what?"}]
    assert run(f"{write('rows.jsonl', *mixed)} {FIXED} --dry-run") == 4
    assert "has an image with a prompt and an answer" in capsys.readouterr().err


def test_evaluation_without_a_readable_image_is_an_error(run, capsys):
    train = write("train.jsonl", *rows("good.png"))
    assert run(f"{train} --eval {damaged('text')} --eval-every 1 {FIXED}") == 4
    assert "none of the images of the rows to evaluate on can be read" in capsys.readouterr().err
    write("rows.jsonl")
    assert run(f"{train} --eval rows.jsonl {FIXED}") == 4
    assert not Path("out").exists()


def test_empty_answers_alone_are_reported(run, capsys):
    assert run(f"{write('rows.jsonl', *rows('good.png', suffix=''))} {FIXED} --dry-run") == 0
    assert "all answers are empty: the model learns to answer nothing" in capsys.readouterr().err


def test_complete_run_needs_no_images(run):
    write("rows.jsonl", *rows("good.png"))
    assert run(f"rows.jsonl {FIXED}") == 0
    Path("good.png").unlink()
    assert run(f"rows.jsonl {FIXED}") == 0
