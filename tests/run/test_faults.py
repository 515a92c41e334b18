"""Regression tests for faults of earlier versions."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.stub_runs import finish, kinds, make_images, rows_of, start

FOLDER = {"rows_per_file": 5}
KINDS = kinds(5)


@pytest.fixture
def images(tmp_path) -> Path:
    make_images(tmp_path / "images", 8)
    (tmp_path / "run").mkdir()
    return tmp_path


def manifest(images: Path, name: str = "list.jsonl", **columns: Any) -> None:
    rows = [
        {"image": f"images/{n:03}.png", **{c: v[n] for c, v in columns.items()}} for n in range(8)
    ]
    (images / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("kind", KINDS)
def test_a_complete_output_is_compared_with_the_model(images, tiny, tiny2, kind):
    """29.14, 35.4: another folder, other weights, another dtype."""
    output, options = KINDS[kind]
    model = shutil.copytree(tiny, images / "model")
    options = {"model": "../model", **options}
    assert finish(images / "run", output, **options)[0] == 0
    rows = rows_of(images / "run", output)
    code, said = finish(images / "run", output, **options | {"model": "demo"})
    assert (code, "another model: checkpoint: a folder -> demo@" in said) == (13, True), said
    code, said = finish(images / "run", output, **options | {"dtype": "bfloat16"})
    assert (code, "dtype" in said) == (13, True), said
    weights = next(model.glob("*.safetensors"))
    os.utime(weights, (1, 1))  # the same content
    assert finish(images / "run", output, **options)[0] == 0
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, said = finish(images / "run", output, **options)
    assert (code, f"another model: checkpoint: {weights.name} differs\n" in said) == (13, True)
    preprocessor = model / "preprocessor_config.json"
    preprocessor.write_text(preprocessor.read_text() + "\n")
    (model / "tokenizer_config.json").write_text("{}")
    code, said = finish(images / "run", output, **options)
    names = f"{weights.name}, preprocessor_config.json, tokenizer_config.json differ\n"
    assert (code, names in said) == (13, True), said
    assert rows_of(images / "run", output) == rows


@pytest.mark.parametrize("change", ["reversed", "edited"])
def test_shards_of_different_manifests_are_refused(images, change):
    """35.5: six ids came twice, and six were lost."""
    options = {"rows_per_file": 2}
    manifest(images, id=list("abcdefgh"))
    code, said = finish(images / "run", "rows/", ["../list.jsonl"], shard="0/2", **options)
    assert code == 0, said
    lines = (images / "list.jsonl").read_text().splitlines(keepends=True)
    lines = lines[::-1] if change == "reversed" else [lines[0].replace('"a"', '"x"'), *lines[1:]]
    (images / "list.jsonl").write_text("".join(lines))
    code, said = finish(images / "run", "rows/", ["../list.jsonl"], shard="1/2", **options)
    assert (code, "list.jsonl has " in said) == (13, True), said


@pytest.mark.parametrize("kind", ["lines", "parquet", "folder"])
def test_two_commands_at_one_moment(images, kind):
    """One of them has the output, the other one exits with 12."""
    output, options = KINDS[kind]
    runs = [start(images / "run", output, seconds=0.02, **options) for _ in range(3)]
    codes = sorted(run.wait() for run in runs)
    assert codes in ([0, 12, 12], [0, 0, 12], [0, 0, 0]), (images / "said").read_text()
    assert len(rows_of(images / "run", output)) == 16


def test_an_image_that_kills_engines_twice_is_an_error_row(images):
    Image.new("RGB", (8, 8)).save(images / "images/0 kills.png")
    Image.new("RGB", (8, 8)).save(images / "images/1 kills once.png")
    for output, options in (("rows.jsonl", {}), ("rows.parquet", {}), ("rows/", FOLDER)):
        code, said = finish(images / "run", output, engines=2, **options)
        assert code == 3, said
        rows = [json.loads(row) for row in rows_of(images / "run", output)]
        failed = [row["id"] for row in rows if row["error"] == "worker_crashed"]
        assert (len(rows), set(failed)) == (20, {"0 kills.png"})
        for marker in images.glob("met *"):
            marker.unlink()
