"""Sources that grow: recorded files keep their places, new ones follow, changes are reported."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import ManifestError, OutputExists
from pgcli.inputs import Inventory, ReadOptions, tables
from tests.inputs.items import reloaded, touch
from tests.support.awkward import FORMATS, folder, json_lines

#: Sources may have the same files.
REPEATS = ReadOptions(repeats_ids=True)


def lines(*rows: dict[str, Any], name: str = "m.jsonl", mode: str = "w", end: str = "") -> str:
    with open(name, mode) as file:
        file.write(end + "".join(json.dumps(row) + "\n" for row in rows))
    return name


def recorded(sources: list[str], options: ReadOptions | None = None) -> Inventory:
    """The inventory as a later process has it before it scans."""
    options = options or ReadOptions()
    return reloaded(Inventory.scan(sources, options), sources, options)


def ids(inventory: Inventory) -> list[str]:
    found = list(inventory)
    assert [item.index for item in found] == list(range(len(found))) == list(range(inventory.total))
    return [item.id for item in found]


def everything(items: range) -> bool:
    return True


def nothing(items: range) -> bool:
    return False


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_input_that_stayed_the_same_has_no_new_generation(make):
    sources, options = [make()], ReadOptions(repeats_ids=True)
    before = recorded(sources, options)
    again = Inventory.scan(sources, options, before)
    assert len(again.generations) == 1
    assert list(again) == list(before)
    assert again.changes(everything) is None
    assert again.gone == 0


def test_new_files_come_after_recorded_files_wherever_they_sort():
    sources = [folder(), json_lines(), "d/*.png"]
    before = recorded(sources, REPEATS)
    touch("d/0-late.png")
    after = Inventory.scan(sources, REPEATS, known=before)
    assert ids(after)[: before.total] == ids(before)
    assert ids(after)[before.total :] == ["d/0-late.png"] * 2
    touch("d/00.png")
    again = Inventory.scan(sources, REPEATS, known=reloaded(after, sources, REPEATS))
    assert len(again.generations) == 3
    assert ids(again)[after.total :] == ["d/00.png"] * 2
    assert again.changes(everything) is None


@pytest.mark.parametrize("ends_line", [True, False])
def test_manifest_of_lines_grows_at_its_end(ends_line):
    name = lines(*({"image": f"{n}.png", "id": n} for n in range(3)))
    if not ends_line:
        Path(name).write_text(Path(name).read_text().rstrip("\n"))
    touch("i/z.png")
    sources = [name, "i"]
    inventory = recorded(sources)
    for number in range(3, 6):
        text = json.dumps({"image": f"{number}.png", "id": number}) + "\n"
        with open(name, "a") as file:
            file.write(text if ends_line else "\n" + text.rstrip())
        inventory = Inventory.scan(sources, known=inventory)
        assert inventory.changes(everything) is None
        inventory = reloaded(inventory, sources, ReadOptions())
    assert ids(inventory) == ["0", "1", "2", "i/z.png", "3", "4", "5"]
    assert [item.id for item in inventory.items(2, 5)] == ["2", "i/z.png", "3"]
    if not ends_line:
        lines(mode="a", end="\n")
    lines({"image": "0.png", "id": 1}, mode="a")
    with pytest.raises(ManifestError, match=r"twice: m.jsonl, line 2 and m.jsonl, line 7"):
        Inventory.scan(sources, known=inventory)
    lines({"image": 5}, mode="a")
    with pytest.raises(ManifestError, match="line 8"):
        Inventory.scan(sources, ReadOptions(repeats_ids=True), inventory)


def test_csv_grows_with_the_names_of_its_first_line():
    Path("m.csv").write_text('image,note\na.png,"two\nlines"\n')
    options = ReadOptions(keep=("note",))
    before = recorded(["m.csv"], options)
    with open("m.csv", "a") as file:
        file.write("b.png,x\n\n")
    after = Inventory.scan(["m.csv"], options, before)
    assert [(item.id, item.kept["note"]) for item in after] == [
        ("a.png", "two\nlines"),
        ("b.png", "x"),
    ]
    assert after.kept_table(0, 2).to_pydict() == {"note": ["two\nlines", "x"]}


@pytest.mark.parametrize("text", ['{"image": "c"}\n', '{"image": "x"}\n{"image": "b"}\n'])
def test_other_lines_are_a_change(text):
    name = lines({"image": "a"}, {"image": "b"})
    before = recorded([name])
    Path(name).write_text(text)
    after = Inventory.scan([name], known=before)
    change = after.changes(everything)
    assert (change.name, change.items) == (name, range(2))
    assert after.changes(nothing) is not None  # rows behind it may have other places


def test_changed_image_counts_if_rows_of_it_are_saved():
    touch("i/a.png", "i/b.png", "i/c.png")
    before = recorded(["i"])
    touch("i/b.png", data=b"other")
    after = Inventory.scan(["i"], known=before)
    assert after.changes(nothing) is None
    assert after.changes(lambda items: 0 in items) is None
    change = after.changes(lambda items: 1 in items)
    assert (change.name, change.items, change.is_touched) == ("i/b.png", range(1, 2), False)
    # a run that went on recorded it: later it is as recorded
    later = Inventory.scan(["i"], known=reloaded(after, ["i"], ReadOptions()))
    assert later.changes(everything) is None
    assert ids(later) == ["a.png", "b.png", "c.png"]
    touch("i/b.png", data=b"a third")
    assert Inventory.scan(["i"], known=later).changes(everything) is not None


@pytest.mark.parametrize("name", ["m.parquet", "m.tar", "i"])
def test_copy_with_other_times_is_a_change(name, monkeypatch):
    """Unless its bytes are compared, as those of all but large tables are."""
    options = ReadOptions(repeats_ids=True)
    if name == "i":
        touch("i/a.png")
    else:
        FORMATS[name.removeprefix("m.")]()
    before = recorded([name], options)
    os.utime("i/a.png" if name == "i" else name, (1, 1))
    if name != "i":
        assert Inventory.scan([name], options, before).changes(everything) is None
        monkeypatch.setattr(tables, "MAX_DIGESTED_BYTES", 0)
    after = Inventory.scan([name], options, before)
    change = after.changes(everything)
    assert change.is_touched
    assert list(after) == list(before)


def test_gone_files_keep_their_places():
    touch("i/a.png", "i/b.png", "i/c.png", "i/d.png")
    pq.write_table(pa.table({"image": ["x", "y"]}), "m.parquet")
    sources = ["i", "m.parquet", "*.jsonl"]
    lines({"image": "l"})
    before = recorded(sources)
    for name in ("i/b.png", "i/c.png", "m.jsonl"):
        Path(name).unlink()
    lines({"image": "n"}, name="n.jsonl")
    after = Inventory.scan(sources, known=before)
    assert after.gone == 3
    assert after.changes(everything) is None
    found = list(after)
    assert [item.path for item in found[:4]] == [f"i/{name}.png" for name in "abcd"]
    assert [item.fault.code if item.fault else None for item in found[4:]] == [
        None,
        None,
        "missing",
        None,
    ]
    assert found[7].id == "n"


def test_standard_input_has_to_begin_with_the_same_lines(monkeypatch):
    options = ReadOptions(spool=True)

    def scan(text: bytes, known: Inventory | None = None) -> Inventory:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return Inventory.scan(["-"], options, known)

    before = scan(b"a\nb\na\n")
    assert ids(scan(b"a\nb\na\n", before)) == ["a", "b", "a"]
    after = scan(b"a\nb\na\nb\n", before)
    assert ids(after) == ["a", "b", "a", "b"]
    assert after.changes(everything) is None
    for text, first in ((b"a\nx\na\n", 1), (b"a\nb\n", 2)):
        change = scan(text, before).changes(everything)
        assert (change.name, change.items.start) == ("standard input", first)


def arrow_of(**columns):
    sink, table = pa.BufferOutputStream(), pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("data", [b"", b"no arrow", b"ARROW1\0\0" * 9, arrow_of(a=[1])])
def test_file_that_is_not_an_inventory_is_rejected(data):
    with pytest.raises(OutputExists, match=r"inputs/0.arrow"):
        Inventory.load([data], ["i"], ReadOptions())
