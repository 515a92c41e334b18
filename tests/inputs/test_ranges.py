"""Items are read from any place on, of every kind of source, and not those before them."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgcli.inputs import Inventory, ReadOptions, listing, tables
from pgcli.inputs.options import NameFilter
from tests.inputs.items import reloaded
from tests.support.awkward import COUNT, FORMATS, archive, tar_of
from tests.support.stores import bytes_read

#: The archives have ids that repeat.
REPEATS = ReadOptions(repeats_ids=True)


@pytest.fixture(autouse=True)
def small_index(monkeypatch) -> None:
    monkeypatch.setattr(tables, "EVERY", 5)


RANGES = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=8)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranges=RANGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_items_of_ranges_equal_the_items_of_the_whole(kind, ranges, tmp_path):
    """Whatever was read before: readers go on where they stand."""
    if not (names := [str(path) for path in MADE.get((tmp_path, kind), ())]):
        names = [FORMATS[kind]()]
        MADE[tmp_path, kind] = names
    inventory = Inventory.scan(names, REPEATS)
    whole = list(inventory)
    assert [item.index for item in whole] == list(range(COUNT))
    for start, stop in ranges:
        assert list(inventory.items(start, stop)) == whole[start:stop]


MADE: dict[tuple[Path, str], list[str]] = {}


@pytest.mark.parametrize("names", [NameFilter(), NameFilter(include=("*3*",))])
def test_another_process_reads_the_same_items_without_a_scan(names, monkeypatch, tmp_path):
    options = ReadOptions(names=names, repeats_ids=True)
    sources = [*(make() for make in FORMATS.values()), "d/*"]
    inventory = Inventory.scan(sources, options)
    whole = list(inventory)
    assert len(whole) == inventory.total
    for start in range(0, len(whole), 23):
        assert list(inventory.items(start, start + 23)) == whole[start : start + 23]
    monkeypatch.setattr(listing.SourceFiles, "records", None)
    monkeypatch.setattr(tables.Table, "scan", None)
    Path("d/0-late.png").write_bytes(b"x")
    again = reloaded(inventory, sources, options)
    assert again.total == len(whole)
    assert list(again) == whole
    file = tmp_path / "0.arrow"
    file.write_bytes(inventory.to_arrow(0))
    assert list(Inventory.load([file], sources, options).items(31, 40)) == whole[31:40]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the bytes that are read")
@pytest.mark.parametrize("size", [200, 200_000], ids=["lines", "members"])
def test_rows_before_the_range_are_not_read(size):
    if size == 200:
        rows = (json.dumps({"image": f"{n}.png", "pad": "x" * size}) for n in range(5000))
        Path("m.jsonl").write_text("\n".join(rows))
        name = "m.jsonl"
    else:
        name = "m.tar"
        Path(name).write_bytes(tar_of((f"{n}.png", b"x" * size) for n in range(40)))
    inventory = Inventory.scan([name])
    total, whole = inventory.total, Path(name).stat().st_size
    before = bytes_read()
    assert len(list(inventory.items(total - total // 10, total))) == total // 10
    assert bytes_read() - before < whole / 5
    if name == "m.tar":  # images are spans of the file, which decoding reads
        before = bytes_read()
        assert len(list(inventory)) == total
        assert bytes_read() - before < whole / 5


def test_consecutive_ranges_of_a_compressed_archive_unpack_it_once():
    inventory = Inventory.scan([archive("m.tgz")], REPEATS)
    list(inventory)
    before = bytes_read()
    whole = [item for start in range(0, COUNT, 3) for item in inventory.items(start, start + 3)]
    assert len(whole) == COUNT
    assert bytes_read() - before < 2 * Path("m.tgz").stat().st_size + 2**16


def test_counting_tells_how_far_it_is(monkeypatch):
    for make in FORMATS.values():
        counts: list[int] = []
        options = ReadOptions(repeats_ids=True, track=counts.append)
        assert Inventory.scan([make()], options).total == sum(counts) == COUNT
        assert all(count <= COUNT for count in counts)
