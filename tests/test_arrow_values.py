"""Values of every Arrow type are the same after a way through JSON."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.arrow_values import from_json, to_json, to_values

ZONES = [None, "UTC", "Europe/Berlin", "America/New_York", "+05:30"]
UNITS = ["s", "ms", "us", "ns"]
TYPES = [
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES),
    *map(pa.duration, UNITS),
    pa.time64("us"),
    pa.time64("ns"),
    pa.date64(),
]


def through_json(array: pa.Array) -> pa.Array:
    text = json.dumps(to_json(to_values(array)), allow_nan=False)
    return from_json(json.loads(text), array.type)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_times_of_any_unit_and_zone_are_the_same(
    kind: pa.DataType, numbers: list[int | None]
) -> None:
    array = pa.array(numbers, pa.int64()).view(kind)
    assert through_json(array).view(pa.int64()).to_pylist() == numbers


@pytest.mark.parametrize("kind", [pa.date32(), pa.time32("s"), pa.time32("ms")], ids=str)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=5))
def test_short_times_are_the_same(kind: pa.DataType, numbers: list[int | None]) -> None:
    array = pa.array(numbers, pa.int32()).view(kind)
    assert through_json(array).view(pa.int32()).to_pylist() == numbers


@given(st.lists(st.none() | st.floats(width=32), max_size=5))
def test_floats_are_the_same(numbers: list[float | None]) -> None:
    for kind in (pa.float32(), pa.float64()):
        array = pa.array(numbers, kind)
        assert str(through_json(array)) == str(array)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=5))
def test_bytes_are_the_same_at_any_depth(values: list[bytes | None]) -> None:
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert through_json(pa.array(values, kind)).to_pylist() == values
    nested = pa.array([[("k", values)], None], pa.map_(pa.string(), pa.list_(pa.binary())))
    assert through_json(nested).to_pylist() == [[("k", values)], None]
