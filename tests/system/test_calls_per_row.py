"""What a run does for a row besides decoding and the model, counted in calls of functions."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.images import pool
from pgcli.records import DecodedImage, Item
from pgcli.run import model as running
from tests.support import pretend

pytestmark = pytest.mark.usefixtures("clean_environment")
FIRST, FEW, MANY = 8, 40, 140


@pytest.mark.parametrize(
    ("output", "options", "most"),
    [("rows.jsonl", [], 260), ("rows/", ["--join", "--rows-per-file", "200"], 260)],
)
def test_a_row_takes_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, options: list[str], most: int
) -> None:
    """The first run is not counted, as it imports modules."""
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    monkeypatch.setattr(pool, "decode_ahead", partial(ready, 8))
    monkeypatch.chdir(tmp_path)
    counts = []
    for rows in (FIRST, FEW, MANY):
        words = ["caption", table(rows), "--model", "demo", "-o", f"{rows}-{output}", "--quiet"]
        counts.append(calls([*words, *options]))
    assert (counts[2] - counts[1]) / (MANY - FEW) < most


def ready(resolution: int, items: Iterable[Item], *_: object, **__: object) -> Iterator[Any]:
    """The items with pixels that take no time."""
    pixels = np.zeros((resolution, resolution, 3), np.uint8)
    for item in items:
        yield DecodedImage(replace(item, data=None), 8, 8, pixels.copy(), 1.0)


def table(rows: int) -> str:
    """The name of a table of so many images."""
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    pq.write_table(pa.table({"image": [data.getvalue()] * rows}), f"{rows}.parquet")
    return f"{rows}.parquet"


def calls(arguments: list[str]) -> int:
    """The number of Python functions that a command calls in this thread."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        code = main(arguments)
    finally:
        sys.setprofile(before)
    assert code == 0
    return count
