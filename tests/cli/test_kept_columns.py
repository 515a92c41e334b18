"""--keep copies columns: from Parquet to Parquet as they are, to JSON lines as documented."""

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.main import main

SECONDS = pa.array([10**12, None, -1, 0], pa.int64())
NUMBERS = pa.array([10**18 + 1, None, -1, 2**40], pa.int64())
DAYS = pa.array([1, None, -5, 2**31 - 1], pa.int32())
PAIRS = pa.map_(pa.string(), pa.int32())
PERSON = pa.struct([("name", pa.string()), ("seen", pa.timestamp("ns", "UTC"))])
#: Of every type that Parquet manifests have, of four values each.
COLUMNS = {
    "moment s": SECONDS.view(pa.timestamp("s")),
    **{f"moment {unit}": NUMBERS.view(pa.timestamp(unit)) for unit in ("ms", "us", "ns")},
    "in a zone": NUMBERS.view(pa.timestamp("ns", "Europe/Berlin")),
    "with an offset": NUMBERS.view(pa.timestamp("us", "+05:30")),
    "duration": NUMBERS.view(pa.duration("ns")),
    "date": DAYS.view(pa.date32()),
    "time": pa.array([1, None, 0, 86_399_999_999_999], pa.int64()).view(pa.time64("ns")),
    "decimal": pa.array([Decimal("1.50"), None, Decimal("-7"), Decimal(0)], pa.decimal128(30, 2)),
    "bytes": pa.array([b"\0\xff", None, b"", b"a"], pa.binary()),
    "fixed bytes": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "float32": pa.array([0.1, None, float("nan"), float("-inf")], pa.float32()),
    "float64": pa.array([0.1, None, float("nan"), float("inf")], pa.float64()),
    "float16": pa.array(np.array([0.1, 2, np.nan, 4], np.float16)),
    "int8": pa.array([1, None, -128, 127], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0, 1], pa.uint64()),
    "boolean": pa.array([True, None, False, True]),
    "text": pa.array(["ü", None, "", "nan"], pa.large_string()),
    "category": pa.array(["a", None, "b", "a"]).dictionary_encode(),
    "map": pa.array([[("k", 1), ("l", None)], None, [], []], PAIRS),
    "list of maps": pa.array([[[("k", 1)]], None, [], [[]]], pa.list_(PAIRS)),
    "struct": pa.array([{"name": "x", "seen": datetime(2020, 1, 1)}, None, {}, {}], PERSON),
    "list": pa.array([[b"x", None], None, [], [b""]], pa.list_(pa.binary())),
    "nothing": pa.nulls(4),
}
NAMES = ",".join(COLUMNS)


@pytest.fixture(autouse=True)
def folder(pretended) -> None:
    """The current folder, with an image and a table of all types."""
    Image.new("RGB", (8, 8)).save("a.png")
    table = pa.table({"image": ["a.png"] * 4, **COLUMNS})
    pq.write_table(table, "m.parquet")


def caption(*options: str) -> int:
    return main(["caption", *options, "--model", "demo", "--quiet"])


def json_rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(params=["rows.parquet", "rows/", "shards"])
def runs(request) -> Iterator[tuple[str, list[list[str]]]]:
    """An output, and the options of the runs that make it."""
    if request.param == "shards":
        yield "rows/", [["--shard", f"{number}/2"] for number in (1, 0)]
    else:  # rows that are saved are read and written again
        yield request.param, [["--limit", "1"], ["--limit", "3"], []]


def test_parquet_columns_are_copied_as_they_are(runs):
    output, options = runs
    for more in options:
        assert caption("m.parquet", "-o", output, "--keep", NAMES, *more) == 0
    source, copy = pq.read_table("m.parquet"), pq.read_table(output.rstrip("/"))
    for name in COLUMNS:
        kind = source.schema.field(name).type
        # no value tells the type of a column without values: it is text
        assert copy.schema.field(name).type == (kind if name != "nothing" else pa.string()), name
        assert str(copy[name].combine_chunks()) == str(
            source[name].cast(copy[name].type).combine_chunks()
        ), name


@pytest.mark.parametrize("words", ["merge rows", "export rows --to parquet", "apply e.json rows"])
def test_commands_on_results_keep_the_types_of_columns(words):
    """29.6: of timestamps, structs and decimals they made text."""
    assert caption("m.parquet", "-o", "rows/", "--keep", NAMES, "--rows-per-file", "2") == 0
    Path("e.json").write_text('{"format": "pgcli edits", "version": 1, "edits": []}')
    assert main([*words.split(), "-o", "copy.parquet", "--quiet"]) == 0
    source, copy = pq.read_table("rows"), pq.read_table("copy.parquet")
    for name in COLUMNS:
        assert copy.schema.field(name).type == source.schema.field(name).type, name
        assert str(copy[name].combine_chunks()) == str(source[name].combine_chunks()), name


def test_error_rows_that_are_asked_again_keep_their_columns():
    image = Path("a.png").read_bytes()
    Path("a.png").unlink()
    assert caption("m.parquet", "-o", "rows/", "--keep", NAMES, "--max-errors", "9") == 3
    Path("a.png").write_bytes(image)
    assert caption("m.parquet", "-o", "rows/", "--keep", NAMES, "--retry-errors") == 0
    source, copy = pq.read_table("m.parquet"), pq.read_table("rows")
    assert copy["error"].to_pylist() == [None] * 4
    for name in COLUMNS:
        assert str(copy[name].combine_chunks()) == str(
            source[name].cast(copy[name].type).combine_chunks()
        ), name
