"""The stored lists of input files."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from pgcli.sources import name_list
from pgcli.sources.file_list import FileList, unlisted
from pgcli.sources.name_list import NameList

NAMES = [f"folder/{number:05}\udcff\n.png" for number in range(3000)]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    NameList.write(tmp_path / "files-0.0", NAMES)
    return tmp_path / "files-0.0"


@pytest.mark.parametrize("start", [0, 1, 1023, 1024, 1025, 2048, 2999, 3000, 9999])
def test_names_are_read_from_any_place(stored: Path, start: int) -> None:
    found = NameList(stored)
    assert found.count == 3000
    assert list(found.names(start)) == NAMES[start:]


def test_few_names_before_the_place_are_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def noted(file: Path, offset: int = 0) -> list[bytes]:
        read.extend(file.read_bytes()[offset:].split(b"\0")[:-1])
        return read

    monkeypatch.setattr(name_list, "raw_names", noted)
    assert next(NameList(stored).names(2900)) == NAMES[2900]
    assert len(read) == 3000 - 2048


@pytest.mark.parametrize("index", [None, b"", b"of another list, of another size"])
def test_list_without_its_index_is_read_once(stored: Path, index: bytes | None) -> None:
    stored.with_name("files-0.0.index").unlink()
    if index is not None:
        stored.with_name("files-0.0.index").write_bytes(index)
    assert NameList(stored).count == 3000
    assert list(NameList(stored).names(1500)) == NAMES[1500:]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_index_cut_by_a_power_loss_is_not_used(stored: Path, size: int) -> None:
    index = stored.with_name("files-0.0.index")
    index.write_bytes(index.read_bytes()[: 8 * size])
    assert list(NameList(stored).names(2048)) == NAMES[2048:]


def test_empty_list(tmp_path: Path) -> None:
    found = NameList.write(tmp_path / "list", [])
    assert (found.count, list(found.names())) == (0, [])


def added(base: Path, names: Iterable[str], generation: int) -> int:
    """How many names are listed once these are added."""
    found = FileList(base)
    found.add(names, generation)
    return found.total


@pytest.mark.parametrize("is_written", [True, False])
def test_new_names_are_a_generation_of_their_own(tmp_path: Path, *, is_written: bool) -> None:
    base = tmp_path / "files-0"
    assert added(base, ["b", "d"], 0) == 2
    assert added(base, ["b", "d"], 1) == 2
    assert FileList(base).last_generation == 0
    found = FileList(base, is_written=is_written)
    found.add(["a", "b", "c", "d"], 1)
    assert found.total == 4
    assert [list(found.names(generation)) for generation in range(3)] == [
        ["b", "d"],
        ["a", "c"],
        [],
    ]
    assert (list(found.names(1, 1)), found.count(1), found.last_generation) == (["c"], 2, 1)
    assert FileList(base).last_generation == int(is_written)
    assert added(base, ["c"], 4) == (4 if is_written else 3)


@pytest.mark.parametrize(
    ("names", "listed", "new"),
    [
        ("abc", "abc", ""),
        ("abc", "", "abc"),
        ("", "abc", ""),
        ("xabcy", "abc", "xy"),
        ("bd", "abcd", ""),
        ("cab", "abc", ""),
        ("cxab", "bac", "x"),
        ("abcdef", "badcfe", ""),
    ],
)
def test_unlisted_names_in_any_order(names: str, listed: str, new: str) -> None:
    assert "".join(unlisted(names, listed)) == new


def test_memory_does_not_grow_with_names_that_are_listed(tmp_path: Path) -> None:
    base = tmp_path / "files-0"
    assert added(base, (f"{number:020}" for number in range(1, 50_000)), 0) == 49_999
    tracemalloc.start()
    assert added(base, (f"{number:020}" for number in range(50_000)), 1) == 50_000
    assert tracemalloc.get_traced_memory()[1] < 1_500_000
    tracemalloc.stop()
