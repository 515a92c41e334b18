"""A small Parquet file whose cell unpacks to gigabytes costs one row, in bounded memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.sources.readers.parquet_pages import read_pages

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "examples" / "images" / "one.png").read_bytes()
CHUNK = bytes(2**24)
#: Runs a command, and prints its exit code and the most memory that it had, in kB.
PEAK = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], timeout=90).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
DATA_PAGE, PLAIN, RLE = 0, 0, 3


def varint(value: int) -> bytes:
    """A number of Thrift's compact protocol, which is not negative."""
    value <<= 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def page_header(unpacked: int, packed: int) -> bytes:
    """The header of a data page with one plain value."""
    details = b"".join(b"\x15" + varint(value) for value in (1, PLAIN, RLE, RLE))
    sizes = b"".join(b"\x15" + varint(value) for value in (DATA_PAGE, unpacked, packed))
    return sizes + b"\x2c" + details + b"\x00\x00"


def packed_zeros(codec: str, size: int) -> bytes:
    """A page with one value of `size` zeros, packed without having them in memory."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as file:
        file.write(size.to_bytes(4, "little"))
        for start in range(0, size, len(CHUNK)):
            file.write(CHUNK[: size - start])
    return bytes(sink.getvalue())


def write_bomb(file: Path, codec: str, size: int) -> None:
    """A table of two images and a cell of zeros, which replaces a cell of as many packed bytes."""
    page = packed_zeros(codec, size)
    page = page_header(size + 4, len(page)) + page
    column = pa.field("image", pa.binary(), nullable=False)
    cells = [IMAGE, IMAGE, random.Random(0).randbytes(len(page))]
    written = BytesIO()
    pq.write_table(
        pa.table({"image": cells}, schema=pa.schema([column])),
        written,
        compression=codec,
        use_dictionary=False,
        data_page_size=1,
        write_batch_size=1,
    )
    before = list(read_pages(written, pq.read_metadata(written).row_group(0).column(0)))[1]
    written.seek(before.offset + before.size)
    written.write(page)
    file.write_bytes(written.getvalue())


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of memory in kB")
@pytest.mark.parametrize(
    ("codec", "size"),
    [
        ("zstd", 1_500_000_000),
        ("gzip", 1_500_000_000),
        ("brotli", 1_500_000_000),
        ("zstd", 570 * 2**20),  # a page that may just be unpacked
    ],
)
def test_cell_of_gigabytes_takes_less_than_one(codec: str, size: int, tmp_path: Path) -> None:
    write_bomb(tmp_path / "bomb.parquet", codec, size)
    assert (tmp_path / "bomb.parquet").stat().st_size < 1.6e6
    pretend = str(ROOT / "tests" / "support" / "pretend.py")
    options = ["caption", "bomb.parquet", "--model", "demo", "-o", "rows.jsonl", "--quiet"]
    run = subprocess.run(
        [sys.executable, "-c", PEAK, sys.executable, pretend, *options],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    exit_code, peak = map(int, run.stdout.split())
    assert exit_code == 3, run.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["error"] for row in rows] == [None, None, "too_large"]
    assert peak < 2**20
