"""Shards of one output: equal parts, in chunks that all of its runs agree on."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.cli.main import main
from tests.support.bytes_read import bytes_read
from tests.support.noise import noise


@pytest.fixture(autouse=True)
def folder(pretended: None) -> None:
    """The current folder, with fifty small images."""
    Path("photos").mkdir()
    for number in range(50):
        Image.new("RGB", (8, 8)).save(f"photos/{number:02}.png")


def caption(*options: str) -> int:
    return main(["caption", "photos", "-o", "rows/", "--model", "demo", "--quiet", *options])


def indices() -> dict[str, list[int]]:
    """The index column of each file of the output."""
    files = sorted(Path("rows").glob("*.parquet"))
    return {file.name: pq.read_table(file)["index"].to_pylist() for file in files}


def test_few_rows_are_shared_by_all_shards() -> None:
    parts = []
    for number in (3, 0, 2, 1):
        before = sum(map(len, indices().values()))
        assert caption("--shard", f"{number}/4") == 0
        parts.append(sum(map(len, indices().values())) - before)
    assert sorted(parts) == [11, 13, 13, 13]
    assert sorted(chain(*indices().values())) == list(range(50))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the bytes that are read")
def test_shards_of_a_table_read_it_about_once_together() -> None:
    """The same rows as one run, whatever the number of shards."""
    table = pa.table({"image": noise(96)})
    pq.write_table(table, "m.parquet", use_dictionary=False, row_group_size=4)
    options = ("--model", "demo", "--quiet", "--workers", "0", "--no-timing")
    assert main(["caption", "m.parquet", "-o", "whole/", *options]) == 0
    before = bytes_read()
    for number in range(8):
        shard = f"{number}/8"
        assert main(["caption", "m.parquet", "-o", "rows/", "--shard", shard, *options]) == 0
    weights = 8 * total_bytes(BUILTIN)  # their digest is a part of the name, in each process
    assert bytes_read() - before - weights < 2 * Path("m.parquet").stat().st_size
    assert pq.read_table("rows") == pq.read_table("whole")
