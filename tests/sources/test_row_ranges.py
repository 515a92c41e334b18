"""A source reads the rows that are asked for, of every format, and not those before them."""

from __future__ import annotations

import json
import pickle
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from pgcli.records import NOT_READ
from pgcli.remote import UrlReader
from pgcli.sources.folder_walk import FolderWalk
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers import bookmarks
from tests.support.bytes_read import bytes_read
from tests.support.source_formats import COUNT, FORMATS, folder, json_lines


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bookmarks, "EVERY", 5)


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_rows_of_a_range_are_those_of_the_whole(make: Callable[[], str]) -> None:
    source = open_sources([make()])
    whole = list(source)
    assert [item.index for item in whole] == list(range(COUNT))
    for start, stop in [(0, 1), (4, 6), (5, 10), (17, 43), (50, COUNT), (56, 99), (57, 60)]:
        assert list(source.rows(start, stop)) == whole[start:stop]
    assert list(source) == whole


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_ranges_of_selected_rows_are_those_of_the_whole(make: Callable[[], str]) -> None:
    names = NameFilter(include=("*3*", "*5*"), exclude=("*13*",))
    source = open_sources([make()], ReadOptions(names=names))
    whole = list(source)
    assert source.total == len(whole) > 9
    assert [item.index for item in whole] == list(range(len(whole)))
    assert all(names.accepts(item.id) for item in whole)
    for start in range(0, len(whole), 4):
        assert list(source.rows(start, start + 4)) == whole[start : start + 4]


def test_rows_of_several_sources_are_numbered_through() -> None:
    source = open_sources([make() for make in FORMATS.values()])
    whole = list(source)
    assert source.total == len(whole) == COUNT * len(FORMATS)
    for start in range(0, len(whole), 23):
        assert list(source.rows(start, start + 23)) == whole[start : start + 23]


@pytest.mark.parametrize("names", [NameFilter(), NameFilter(include=("*3*",))])
def test_another_process_reads_the_same_rows_without_a_scan(
    names: NameFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = UrlReader(allow_private_hosts=True, fetch_threads=3)
    options = ReadOptions(names=names, url_reader=reader, track=lambda rows: iter(rows))
    source = open_sources([*(make() for make in FORMATS.values()), "d/*"], options)
    source.pin_files(lambda number: Path(f"list-{number}"))
    whole = list(source)
    sent = pickle.dumps(source)
    monkeypatch.setattr(FolderWalk, "__iter__", None)
    monkeypatch.setattr(ManifestSource, "_scan_rows", None)
    Path("d/0-late.png").write_bytes(b"x")
    Path("lists").mkdir()
    for file in Path().glob("list-*"):
        file.rename("lists" / file)
    found = pickle.loads(sent)
    found.read_lists(lambda number: Path(f"lists/list-{number}"))
    assert found.total == len(whole)
    assert list(found) == whole
    assert list(found.rows(31, 40)) == whole[31:40]


def test_files_that_arrive_later_are_numbered_after_the_others() -> None:
    names = [folder(), json_lines()]
    for late in (False, True):
        if late:
            Path("d/0-late.png").write_bytes(b"x")
        source = open_sources(names)
        source.pin_files(lambda number: Path(f"list-{number}"))
    whole = list(source)
    assert whole[-1].image == "d/0-late.png"
    assert whole[-1].index == 2 * COUNT
    for start in range(0, len(whole), 10):
        assert list(source.rows(start, start + 10)) == whole[start : start + 10]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the bytes that are read")
@pytest.mark.parametrize("size", [200, 200_000], ids=["lines", "members"])
def test_rows_before_the_range_are_not_read(size: int) -> None:
    if size == 200:
        rows = (json.dumps({"image": f"{n}.png", "pad": "x" * size}) for n in range(5000))
        Path("m.jsonl").write_text("\n".join(rows))
        name = "m.jsonl"
    else:
        name = "m.tar"
        with tarfile.open(name, "w") as tar:
            for n in range(40):
                info = tarfile.TarInfo(f"{n}.png")
                info.size = size
                tar.addfile(info, BytesIO(b"x" * size))
    source = open_sources([name])
    total, whole = source.total, Path(name).stat().st_size
    assert total is not None
    before = bytes_read()
    assert len(list(source.rows(total - total // 10, total))) == total // 10
    assert bytes_read() - before < whole / 5
    before = bytes_read()
    found = list(source.rows(0, total, lambda index: False))
    assert len(found) == total
    if name == "m.tar":
        assert all(item.data is NOT_READ for item in found)
        assert bytes_read() - before < whole / 5
