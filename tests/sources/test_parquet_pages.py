"""Images in Parquet are read page by page: the cells of pyarrow, only those asked for, bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import ManifestError
from pgcli.records import NOT_READ, Item
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers import parquet_batches, parquet_cells
from pgcli.sources.readers.parquet_cells import Cell, CellReader, can_read
from pgcli.sources.readers.parquet_levels import runs
from pgcli.sources.readers.parquet_pages import read_pages
from pgcli.sources.readers.thrift import CompactReader, Truncated
from tests.support.bytes_read import bytes_read

RANDOM = np.random.default_rng(5)
BIG = [RANDOM.bytes(int(size)) for size in RANDOM.integers(0, 2000, 700)]
CELLS = {
    "distinct": BIG,
    "nulls": [cell if number % 3 else None for number, cell in enumerate(BIG)],
    "repeated": [BIG[number] for number in RANDOM.integers(0, 40, 700)],
    "null": [None] * 90,
    "empty": [b""] * 90,
    "alternating": [None, b"x"] * 90,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(cells: list[bytes | None], **options: Any) -> BytesIO:
    file = BytesIO()
    pq.write_table(pa.table({"image": pa.array(cells, pa.binary())}), file, **options)
    return file


def read(file: BytesIO, group: int, start: int, stop: int) -> Iterator[Cell]:
    column = pq.read_metadata(file).row_group(group).column(0)
    pages = list(read_pages(file, column))
    assert can_read(pages, column.compression)
    return CellReader(file, pages, column.compression, 1).cells(start, stop)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("codec", ["snappy", "none", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_cells_are_those_that_were_written(
    kind: str, codec: str, version: str, dictionary: bool
) -> None:
    cells = CELLS[kind]
    options = {"compression": codec, "data_page_version": version, "use_dictionary": dictionary}
    for pages in ({}, {"data_page_size": 2000, "write_batch_size": 10, "row_group_size": 400}):
        file = written(cells, **options, **pages)
        before = 0
        for group in range(pq.read_metadata(file).num_row_groups):
            rows = pq.read_metadata(file).row_group(group).num_rows
            for start, stop in ((0, rows), (rows // 3, rows // 2), (rows - 1, rows)):
                expected = cells[before + start : before + stop]
                assert list(read(file, group, start, stop)) == expected
            before += rows


@pytest.mark.parametrize("damage", [0, 4, 9, 40, 900])
def test_damaged_page_costs_its_rows(damage: int) -> None:
    """The rows of the pages behind it are whole."""
    file = written(BIG, use_dictionary=False, data_page_size=2000, write_batch_size=10)
    column = pq.read_metadata(file).row_group(0).column(0)
    page = list(read_pages(file, column))[3]
    data = bytearray(file.getvalue())
    data[page.offset + damage : page.offset + damage + 8] = b"\xff" * 8
    found = list(read(BytesIO(data), 0, 0, len(BIG)))
    rows = range(page.first, page.first + page.values)
    assert len(found) == len(BIG)
    assert all(found[n] == BIG[n] for n in range(len(BIG)) if n not in rows)
    assert parquet_cells.DAMAGED in found or damage > 9  # within an image


def test_page_or_image_that_is_too_large_costs_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [b"a" * 100, b"b" * 5000, b"c" * 100, b"d" * 100]
    file = written(cells, use_dictionary=False, data_page_size=10, write_batch_size=1)
    monkeypatch.setattr(parquet_cells, "MAX_CELL_BYTES", 4000)
    assert list(read(file, 0, 0, 4)) == [cells[0], parquet_cells.LARGE_CELL, *cells[2:]]
    monkeypatch.setattr(parquet_cells, "MAX_PAGE_BYTES", 4000)
    assert list(read(file, 0, 0, 4)) == [cells[0], parquet_cells.LARGE_PAGE, *cells[2:]]
    file = written(cells)  # all in one dictionary
    assert list(read(file, 0, 0, 4)) == [parquet_cells.LARGE_PAGE] * 4


def test_other_encodings_are_read_by_pyarrow() -> None:
    options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"}}
    Path("m.parquet").write_bytes(written(BIG, row_group_size=300, **options).getvalue())
    source = open_sources(["m.parquet"])
    assert [item.data or b"" for item in source] == BIG
    assert [item.data for item in source.rows(290, 310)] == BIG[290:310]


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x15\xff\xff\xff\xff\xff", b"\x18\x7f", b"\x1c"])
def test_cut_header_is_truncated(data: bytes) -> None:
    with pytest.raises(Truncated):
        CompactReader(data).struct()


@pytest.mark.parametrize("data", [b"\x1d\x00", b"\x1c" * 40, b"\x15" + b"\xff" * 20])
def test_hostile_header_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|unknown|64 bits"):
        CompactReader(data).struct()


def test_endless_run_takes_no_memory() -> None:
    """A page of seven bytes can announce two billion nulls."""
    assert next(runs(memoryview(b"\xfe\xff\xff\xff\x0f\x00"), 1)) == (0, 2**31 - 1)
    with pytest.raises(ValueError, match="bits"):
        next(runs(memoryview(b"\x02\x00"), 200))


# --- rows of a source


def items(name: str, start: int, stop: int, **options: Any) -> list[Item]:
    return list(open_sources([name], ReadOptions(**options)).rows(start, stop))


def test_image_that_is_not_needed_is_unread() -> None:
    rows = [{"bytes": cell, "path": f"{n}.png"} for n, cell in enumerate(BIG)]
    pq.write_table(pa.table({"image": rows}), "m.parquet", row_group_size=100)
    source = open_sources(["m.parquet"])
    found = list(source.rows(150, 450, lambda index: index % 7 == 0))
    whole = list(source)
    assert [item.id for item in found] == [item.id for item in whole[150:450]]
    assert [item.image for item in found] == [item.image for item in whole[150:450]]
    for item in found:
        assert item.data == BIG[item.index] if item.index % 7 == 0 else item.data is NOT_READ


def test_image_column_with_nulls_is_read_to_know_them() -> None:
    rows = [{"bytes": None if n % 2 else b"x", "path": f"{n}.png"} for n in range(20)]
    pq.write_table(pa.table({"image": rows}), "m.parquet")
    source = open_sources(["m.parquet"])
    assert list(source.rows(0, 20, lambda index: False)) == list(source)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the bytes that are read")
@pytest.mark.parametrize("group", [50, 400], ids=["row groups", "one row group"])
def test_only_the_pages_of_the_rows_are_read(group: int) -> None:
    cells = [RANDOM.bytes(20_000) for _ in range(400)]
    options: dict[str, Any] = {"data_page_size": 2**16, "write_batch_size": 4}
    table = pa.table({"image": cells, "id": [str(n) for n in range(400)]})
    pq.write_table(table, "m.parquet", row_group_size=group, use_dictionary=["id"], **options)
    size = Path("m.parquet").stat().st_size
    source = open_sources(["m.parquet"])

    before = bytes_read()
    assert len(list(open_sources(["m.parquet"]).rows(0, 0))) == 0
    assert bytes_read() - before < size / 10  # opening reads no image

    before = bytes_read()
    found = [list(source.rows(start, start + 25)) for start in range(0, 400, 25)]
    total = bytes_read() - before
    assert [item.data for part in found for item in part] == cells
    assert total < 1.5 * size

    before = bytes_read()
    found = [list(source.rows(0, 400, lambda index: index >= 350))]
    assert [item.data for item in found[0][350:]] == cells[350:]
    assert bytes_read() - before < size / 4


# --- bombs

BOMB = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
kind, size = sys.argv[1], 300 * 2**20
image = [b"x", b"\\0" * size]
columns = {"image": [b"x", b"y"], "id": ["a", "b"], "kept": [b"x", b"y"], "numbers": [1, 2]}
if kind == "image":
    columns["image"] = image
elif kind == "struct":
    columns["image"] = [{"bytes": one, "path": "a.png"} for one in image]
elif kind == "id":
    columns["id"] = ["a", "\\0" * size]
elif kind == "kept":
    columns["kept"] = image
elif kind == "many":
    columns["kept"] = [b"\\0" * (size // 5)] * 5
    columns |= {name: columns[name][:1] * 5 for name in ("image", "numbers")}
    columns["id"] = list("abcde")
else:
    columns = {"image": ["x"] * size, "numbers": [0] * size}
pq.write_table(pa.table(columns), "m.parquet", compression="zstd", use_dictionary=False,
               data_page_size=2**31 - 1, write_batch_size=2**31 - 1 if kind == "numbers" else 1)
"""
READ = """
import sys
from pathlib import Path
from pgcli.errors import ManifestError
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.open_sources import open_sources
from pgcli.sources.readers import parquet_batches, parquet_cells
for module in (parquet_batches, parquet_cells):
    module.MAX_PAGE_BYTES = module.MAX_BATCH_BYTES = 100 * 2**20
try:
    keep = ("numbers",) if sys.argv[1] == "numbers" else ("kept",)
    source = open_sources(["m.parquet"], ReadOptions(keep=keep))
    print(*(item.fault.code for item in source if item.fault))
except ManifestError as problem:
    print("refused:", problem)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if "VmHWM" in line))
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("image", "too_large"),
        ("struct", "too_large"),
        ("id", "refused: m.parquet, after row 0: it cannot be read: a page of the column 'id'"),
        ("kept", "refused: m.parquet, after row 0: it cannot be read: a page of the column 'kept'"),
        ("many", ""),
    ],
)
def test_small_file_of_large_cells_does_not_fill_the_memory(kind: str, told: str) -> None:
    """The limits and the file are a fifth of the real ones, to be quick."""
    subprocess.run([sys.executable, "-c", BOMB, kind], check=True, timeout=100)
    assert Path("m.parquet").stat().st_size < 100_000
    run = subprocess.run(
        [sys.executable, "-c", READ, kind], capture_output=True, check=True, timeout=100, text=True
    )
    outcome, peak = run.stdout.splitlines()
    assert outcome.startswith(told)
    assert int(peak) < 300 * 2**10


def test_pages_of_text_bound_the_rows_that_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_batches, "MAX_BATCH_BYTES", 10_000)
    table = pa.table({"image": ["a"] * 100, "id": [f"{n:01000}" for n in range(100)]})
    pq.write_table(table, "m.parquet", use_dictionary=False, data_page_size=1, write_batch_size=1)
    file = pq.ParquetFile("m.parquet")
    leaves = [(1, file.schema.column(1))]
    with Path("m.parquet").open("rb") as pages:
        assert parquet_batches.batch_rows(pages, leaves, file.metadata.row_group(0)) == 4
    monkeypatch.setattr(parquet_batches, "MAX_PAGE_BYTES", 500)
    with pytest.raises(ManifestError, match="page of the column 'id' has 1 values"):
        open_sources(["m.parquet"])
