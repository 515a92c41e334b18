"""Folders and patterns of any depth are walked, and paths that are too long are error rows."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import NoInputError, UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import NameFilter
from pgcli.inputs.paths import expand_source
from tests.inputs.items import ids, items, touch


@pytest.fixture(autouse=True)
def removed(working_folder) -> Iterator[None]:
    yield
    # pytest's own clean-up would recurse
    subprocess.run(["rm", "-rf", "i"], cwd=working_folder, check=True, timeout=100)


def nest(name: str, depth: int) -> None:
    """An image below so many folders."""
    start = Path.cwd()
    Path("i").mkdir()
    os.chdir("i")
    for _ in range(depth):
        Path(name).mkdir()
        os.chdir(name)
    Path("a.jpg").touch()
    os.chdir(start)


@pytest.mark.parametrize("source", ["i", "i/**/*.jpg", "i/**"])
def test_image_below_many_folders_is_found(source):
    nest("d", 1500)
    (item,) = items(source)
    assert item.image == "i/" + "d/" * 1500 + "a.jpg"


def test_pattern_of_many_folders_is_matched():
    nest("d", 1100)
    assert ids("i/" + "*/" * 1100 + "*.jpg") == ["i/" + "d/" * 1100 + "a.jpg"]


@pytest.mark.parametrize("source", ["i", "i/**/*.jpg", "i/**"])
def test_path_that_is_too_long_is_an_error_row(source):
    nest("d" * 200, 25)
    Path("i/b.jpg").touch()
    found = items(source)
    assert sorted(item.fault.code if item.fault else "" for item in found) == ["", "missing"]
    (long,) = [item for item in found if item.fault]
    assert long.fault.message == "The path is longer than file systems allow."


def test_excluded_folder_is_not_walked(monkeypatch):
    touch("i/a.png", "i/draft/b.png", "i/draft/old/c.png")
    walked: list[str] = []

    def scandir(path: str, scan: Any = os.scandir) -> Any:
        walked.append(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    inventory = Inventory.scan(["i"], ReadOptions(names=NameFilter(exclude=("draft/",))))
    assert [item.id for item in inventory] == ["a.png"]
    assert set(walked) == {"i"}
    names = NameFilter(exclude=("draft/*.png",))
    assert ids("i", reading=ReadOptions(names=names)) == ["a.png"]


def test_pattern_has_names_of_folders_behind_a_star():
    touch("i/a/x.png", "i/b/y.png", "j/x.png")
    assert ids("i/*/x.png") == ["i/a/x.png"]
    assert ids("./i/*/x.png") == ["./i/a/x.png"]


def test_folders_that_hold_no_match_of_a_pattern_are_not_read(monkeypatch):
    touch("i/a.png", "i/b/c.png", "i/d/e/f.png", "i/b/g/h.png")
    walked: list[str] = []

    def scandir(path: str, scan: Any = os.scandir) -> Any:
        walked.append(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [item.id for item in Inventory.scan(["i/[ab]*"])] == ["i/a.png"]
    assert [item.id for item in Inventory.scan(["i/b/*"])] == ["i/b/c.png"]
    assert [item.id for item in Inventory.scan(["i/b/**"])] == ["i/b/c.png", "i/b/g/h.png"]
    assert walked == ["i/", "i/b/", "i/b/", "i/b/g"]


def test_links_to_folders_behind_a_star_are_followed_out_of_the_folder():
    touch("out/a.jpg", "i/d/b.jpg")
    Path("i/out").symlink_to("../out")
    Path("i/same").symlink_to("d")
    assert ids("i/*/*.jpg") == ["i/d/b.jpg", "i/out/a.jpg"]


def test_source_is_expanded_without_the_output_of_runs():
    Path("rows.jsonl.pgcli").mkdir()
    for name in ("rows.jsonl", "m.jsonl"):
        Path(name).touch()
    assert expand_source("*.jsonl") == ["*.jsonl", "m.jsonl"]
    assert expand_source("s3://b/*") == []


def test_folders_of_a_data_set_are_columns():
    for shop, year in (("de", "2024"), ("a%20b", "__HIVE_DEFAULT_PARTITION__")):
        part = Path(f"i/shop={shop}/year={year}")
        part.mkdir(parents=True)
        pq.write_table(pa.table({"image": [b"x"], "n": [1]}), part / "0.parquet")
    options = ReadOptions(keep=("*",), fields=("shop",))
    inventory = Inventory.scan(["i"], options)
    kept = [{"n": 1, "shop": "a b", "year": None}, {"n": 1, "shop": "de", "year": "2024"}]
    assert [dict(item.kept) for item in inventory] == kept
    assert [item.fields for item in inventory] == [{"shop": "a b"}, {"shop": "de"}]
    table = inventory.kept_table(0, 2)
    assert table.to_pylist() == kept
    assert [str(kind) for kind in table.schema.types] == ["int64", "string", "string"]


# --- hidden names, and Delta tables

LAKE = ("part.parquet", "day=1/part.parquet", "_day=2/part.parquet")
HIDDEN = ("_temporary/0/part.parquet", "_SUCCESS", "day=1/_part.parquet", ".part.parquet.crc")


def lake(*names: str, folder: str = "lake") -> None:
    """A folder of Parquet files, each of one row whose id is its name."""
    for name in names:
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        table = {"image": [b"x"], "id": [name]}
        pq.write_table(pa.table(table), f"{folder}/{name}")


def test_names_that_begin_with_an_underscore_are_hidden_and_counted():
    lake(*LAKE, *HIDDEN)
    inventory = Inventory.scan(["lake"])
    assert sorted(item.id for item in inventory) == sorted(LAKE)
    assert inventory.ignored == {"(_)": 3}
    assert inventory.notes == [("skipped", "3 beginning with _")]
    assert ids("lake/_temporary") == [HIDDEN[0]]
    touch("photos/_DSC1.jpg")
    with pytest.raises(NoInputError) as refused:
        Inventory.scan(["photos"])
    assert "skipped: 1 beginning with _; names that begin with _ are read if" in refused.value.hint


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("_*", ["_a.png", "_d/_i/j.png", "_d/e.png"]),
        ("*/_*", ["_d/_i/j.png", "b/_c.png"]),
        ("_d/*", ["_d/e.png"]),
        ("*", ["b/f.png"]),
        ("*.png", ["b/f.png"]),
        (".g/*", [".g/h.png"]),
        ("_d/_i/*", ["_d/_i/j.png"]),
        ("*/_c.png", ["b/_c.png"]),
    ],
)
def test_include_names_hidden_files_and_folders(include, expected):
    touch("i/_a.png", "i/b/_c.png", "i/b/f.png", "i/_d/e.png", "i/.g/h.png", "i/_d/_i/j.png")
    assert ids("i", reading=ReadOptions(names=NameFilter((include,)))) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("lake/**/*.parquet", ["_day=2/part.parquet", "day=1/_part.parquet", *LAKE[1::-1]]),
        ("lake/*/*.parquet", ["_day=2/part.parquet", "day=1/_part.parquet", LAKE[1]]),
        ("lake/_*/0/*.parquet", ["_temporary/0/part.parquet"]),
        ("lake/_temporary/**", ["_temporary/0/part.parquet"]),
    ],
)
def test_star_of_a_glob_stands_for_no_hidden_folder(pattern, expected):
    lake(*LAKE, *HIDDEN)
    assert ids(pattern) == expected


LOG = "_delta_log/00000000000000000000.json"


@pytest.mark.parametrize("source", ["lake", "lake/", ".", "lake/deep/.."])
def test_folder_of_a_delta_table_is_refused(source):
    lake("part.parquet", "deep/part.parquet", "day=1/shop=de/part.parquet")
    touch(f"lake/{LOG}", data=b'{"add": {"path": "part.parquet"}}\n')
    with pytest.raises(UsageError, match="is a Delta table, which also has files of") as refused:
        Inventory.scan([source])
    assert refused.value.hint == "name its current files"
    for named in ("lake/part.parquet", "lake/*.parquet"):
        assert ids(named) == ["part.parquet"]
