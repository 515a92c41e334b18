"""Merging compares the answers of rows that several files have."""

import json
from math import nan
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from pgcli.results.merge import MergedRows

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
