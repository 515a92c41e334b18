"""Values of every Arrow type as texts and numbers that lose nothing."""

import base64
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.arrow import to_values
from pgcli.rows import json_safe

ZONES = [None, "UTC", "Europe/Berlin", "America/New_York", "+05:30"]
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
#: Years in which offsets from UTC have no seconds, in nanoseconds since 1970.
NANOSECONDS = st.none() | st.integers(10**17, 7 * 10**18)
DAY = 86_400


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", DIGITS)
@given(st.lists(NANOSECONDS, max_size=5))
def test_pyarrow_reads_the_texts_of_moments(unit, zone, numbers):
    scale = 10 ** (9 - DIGITS[unit])
    array = pa.array([None if n is None else n // scale for n in numbers], pa.timestamp(unit, zone))
    assert pa.array(to_values(array), pa.string()).cast(array.type) == array


@pytest.mark.parametrize("unit", DIGITS)
@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), max_size=5))
def test_durations_are_exact_numbers_of_seconds(unit, numbers):
    texts = to_values(pa.array(numbers, pa.duration(unit)))
    parsed = [Decimal(text.replace("PT", "").removesuffix("S")) for text in texts]
    assert parsed == [Decimal(number).scaleb(-DIGITS[unit]) for number in numbers]


def test_texts_have_the_offset_and_no_fraction_of_zero():
    moments = pa.array([-1, 0], pa.timestamp("ns", "Europe/Berlin"))
    before = "1970-01-01T00:59:59.999999999+01:00"
    assert to_values(moments) == [before, "1970-01-01T01:00:00+01:00"]
    assert to_values(moments.cast(pa.timestamp("ns", "UTC")))[1] == "1970-01-01T00:00:00+00:00"
    assert to_values(moments.cast(pa.timestamp("ns")))[1] == "1970-01-01T00:00:00"
    nested = pa.array([[0, None]], pa.list_(pa.timestamp("s")))
    assert to_values(nested) == [["1970-01-01T00:00:00", None]]


def test_numbers_that_are_no_time_are_in_the_text():
    for number, kind in ((2**62, pa.timestamp("s")), (DAY * 10**6, pa.time64("us"))):
        assert str(number) in to_values(pa.array([number]).view(kind))[0]


@given(st.lists(st.none() | st.binary(max_size=9), max_size=5))
def test_bytes_are_base64_at_any_depth(values):
    texts = [None if value is None else base64.b64encode(value).decode() for value in values]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert json_safe(to_values(pa.array(values, kind))) == texts
    nested = pa.array([[("k", values)], None], pa.map_(pa.string(), pa.list_(pa.binary())))
    assert json_safe(to_values(nested)) == [[["k", texts]], None]


def test_times_in_unknown_zones_are_in_utc():
    kind = pa.timestamp("s", tz="Nowhere/Atlantis")
    assert to_values(pa.array([0, None], kind)) == ["1970-01-01T00:00:00+00:00", None]
    assert to_values(pa.array([[0]], pa.list_(kind))) == [["1970-01-01T00:00:00+00:00"]]
