"""Images that tables name are compared with their stamps; Arrow reads their paths."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgcli.inputs import Inventory, ReadOptions, tables
from pgcli.inputs import inventory as inventories
from pgcli.inputs.options import NameFilter

CELLS = ["a.png", "", " b ", 'a"b', "two\nlines", "a\rb", "ü", "\\", "null", "1.50", "a,b", "a\tb"]
CELLS += ["file:a%20b", "http://x/y.png", "data:,x", "\ufeffa", "sub/a.png", "/abs.png", None]
KINDS = ["m.jsonl", "m.csv", "m.tsv", "m.parquet", "structs.parquet"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(tables, "EVERY", 5)
    monkeypatch.setattr(inventories, "TABLE_BLOCK", 7)


def write(name: str, images: list[str | None]) -> None:
    """A table of these images."""
    if name.endswith(".jsonl"):
        lines = (json.dumps({"image": image, "n": [1e9, image]}) for image in images)
        Path(name).write_text("\n\n".join(lines))
    elif name.endswith("sv"):
        with open(name, "w", newline="", encoding="utf-8-sig") as file:
            writer = csv.writer(file, "excel-tab" if name == "m.tsv" else "excel")
            writer.writerows([("image", "note"), *((image, "x\n") for image in images)])
    else:
        structs = [{"path": image, "bytes": None} for image in images]
        lists = [[image] for image in images]
        column = {"structs.parquet": structs, "lists.parquet": lists}.get(name, images)
        pq.write_table(pa.table({"image": column}), name, row_group_size=9)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(images=st.lists(st.sampled_from(CELLS), max_size=40))
@pytest.mark.parametrize("name", [*KINDS, "lists.parquet"])
def test_compared_paths_equal_the_paths_of_the_items(name, images):
    write(name, [*images, "a.png"])
    names = NameFilter(include=("*a*",)) if len(images) % 5 == 0 else NameFilter()
    options = ReadOptions(repeats_ids=True, allow_outside_root=True, names=names)
    items = Inventory.scan([name], options)
    others = items.other_files(np.ones((items.total, 3), np.int64))  # there are no such files
    paths = {item.index: item.path for item in items if item.path is not None}
    assert {index: path for index, _, path in others} == paths


@pytest.mark.parametrize("name", KINDS)
def test_images_are_compared_without_an_object_for_each_row(name, monkeypatch):
    for image in "abc":
        Path(image).write_bytes(image.encode())
    write(name, [*"abc"] * 13)
    items = Inventory.scan([name], ReadOptions(repeats_ids=True))
    status = [Path(image).stat() for image in "abc"]
    stamps = np.array([(s.st_size, s.st_mtime_ns, 1) for s in status] * 13)
    stamps[36] = 0
    looked, stat = list[object](), os.stat
    monkeypatch.setattr(tables.Table, "_chosen_rows", None)
    monkeypatch.setattr(os, "stat", lambda path, **how: looked.append(path) or stat(path, **how))
    assert not [*items.other_files(stamps)]
    assert sum(path in ("a", "b", "c") for path in looked) == 6 * 3  # once in each block
    Path("a").write_bytes(b"other")
    Path("c").unlink()
    others = [index for index, _, _ in items.other_files(stamps)]
    assert others == [n for n in range(39) if n % 3 != 1 and n != 36]


def test_lines_of_standard_input_beside_files_are_compared(set_stdin):
    for image in ("photos/a.png", "b", "c"):
        Path(image).parent.mkdir(exist_ok=True)
        Path(image).write_bytes(b"x")
    set_stdin(b"b\nc\n")
    items = Inventory.scan(["photos", "-"], ReadOptions(spool=True))
    status = [Path(item.path).stat() for item in items]
    stamps = np.array([(s.st_size, s.st_mtime_ns, 1) for s in status])
    assert not [*items.other_files(stamps)]
    Path("c").write_bytes(b"other")
    assert [*items.other_files(stamps)] == [(2, "c", "c")]
    stamps[:, 1] += 1
    others = sorted(items.other_files(stamps))
    assert others == [(n, name, name) for n, name in enumerate(["photos/a.png", "b", "c"])]
