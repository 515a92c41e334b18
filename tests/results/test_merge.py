"""Merging and `diff` compare the answers of rows that several files have."""

import json
from math import nan
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from pgcli.results.merge import MergedRows
from tests.support.exporting import make_images, plain, saved

BASE = {"index": 0, "id": "a.png", "image": "a.png", "width": 64, "height": 48, "model": "m"}
BASE |= {"load_ms": 1.0, "vision_ms": 1.0, "error": None, "error_message": None}


def embedded(value: float | None) -> dict[str, Any]:
    return {**BASE, "embedding": [value, 1.0]}


def scored(value: float | None) -> dict[str, Any]:
    return {**BASE, "scores": [{"text": "x", "cosine": value, "score": 0.5, "probability": 1.0}]}


@pytest.mark.parametrize("row", [embedded, scored])
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("first", "second", "conflicts"),
    [(nan, nan, 0), (None, nan, 0), (None, None, 0), (nan, 0.5, 1), (0.5, None, 1), (0.5, 0.7, 1)],
)
def test_two_values_that_are_not_numbers_are_equal(tmp_path, row, ending, first, second, conflicts):
    files: list[Path] = []
    for number, value in enumerate((first, second)):
        files.append(tmp_path / f"{number}{ending}")
        if ending == ".jsonl":
            files[-1].write_text(json.dumps(row(value)) + "\n")
        else:
            parquet.write_table(pyarrow.Table.from_pylist([row(value)]), files[-1])
    merged = MergedRows(files)
    assert len([*merged]) == 1
    assert merged.stats.conflicts == conflicts


@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_rows_of_one_file_are_counted_and_boxes_are_shown_as_boxes(cli, tmp_path, format):
    """As after `apply --rows accepted`, which keeps few of the rows."""
    rows = plain(make_images(tmp_path))
    places = "<loc0085><loc0128><loc0298><loc0448> dog ; <loc0000><loc0000><loc1023><loc1023> cat"
    rows[0]["answer"] = places
    changed = rows[0] | {"answer": places[:40], "boxes": rows[0]["boxes"][:1]}
    first = saved(tmp_path / "all.jsonl", rows)
    second = saved(tmp_path / "accepted.jsonl", [changed])
    words = ("diff", first, second, "--format", format)
    code, out, err = cli(*words)
    assert (code, f"rows: 1 different, 2 only in {first}" in err) == (5, True)
    assert "--verbose prints the rows of one file too" in err
    if format == "jsonl":
        assert [json.loads(line)["id"] for line in out.splitlines()] == ["a.png"]
    else:
        before = ["- dog ; cat", "-   dog 8,4 - 28,14 (0.25)", "-   cat 0,0 - 64,48 (0.5)"]
        after = ["+ dog", "+   dog 8,4 - 28,14 (0.25)"]
        assert out.splitlines() == ["a.png: segment cat ; dog", *before, *after]
    shown = cli(*words, "--verbose")[1]
    assert all(row["id"] in shown for row in rows)
