"""Columns of every type that Parquet manifests have, of four values each."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa

SECONDS = pa.array([10**12, None, -1, 0], pa.int64())
NUMBERS = pa.array([10**18 + 1, None, -1, 2**40], pa.int64())
DAYS = pa.array([1, None, -5, 2**31 - 1], pa.int32())
PAIRS = pa.map_(pa.string(), pa.int32())
PERSON = pa.struct([("name", pa.string()), ("seen", pa.timestamp("ns", "UTC"))])
COLUMNS_OF_ALL_TYPES = {
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
}
