"""Parquet is read within limits: a bomb costs its row group, and little memory of this process."""

import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from pgcli.errors import ManifestError, UsageError
from pgcli.images import child_process
from pgcli.inputs import Inventory, ReadOptions, parquet
from pgcli.inputs.parquet import PROCESS
from pgcli.records import Item
from tests.support.runs import ends_soon, run_python

RANDOM = np.random.default_rng(5)
BIG = [RANDOM.bytes(int(size)) for size in RANDOM.integers(1, 2000, 700)]
CELLS: dict[str, list[bytes | None]] = {
    "distinct": [*BIG],
    "nulls": [cell if number % 3 else None for number, cell in enumerate(BIG)],
    "repeated": [BIG[number] for number in RANDOM.integers(0, 40, 700)],
    "null": [None] * 90,
    "alternating": [None, b"x"] * 90,
}


def write(name: str = "m.parquet", **columns: Any) -> None:
    options = {key[1:]: columns.pop(key) for key in list(columns) if key.startswith("_")}
    pq.write_table(pa.table(columns), name, **options)


def items(**options: Any) -> list[Item]:
    return list(Inventory.scan(["m.parquet"], ReadOptions(**options)))


def codes(found: list[Item]) -> list[str | None]:
    return [item.fault.code if item.fault else None for item in found]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("codec", "dictionary"), [("snappy", True), ("none", False)])
def test_cells_are_those_that_were_written(kind, codec, dictionary):
    cells = pa.array(CELLS[kind], pa.binary())
    write(image=cells, _compression=codec, _use_dictionary=dictionary, _row_group_size=300)
    inventory = Inventory.scan(["m.parquet"])
    assert [item.data for item in inventory] == CELLS[kind]
    assert [item.data for item in inventory.items(20, 80)] == CELLS[kind][20:80]


def test_rows_in_small_batches_are_the_same(monkeypatch):
    """Whatever is sent at once: the process is started anew with these limits."""
    ids = [f"id {n}" for n in range(len(BIG))]
    write(image=BIG, id=ids, _row_group_size=200)
    program = "from pgcli.inputs import parquet as process\n"
    program += "process.MAX_BATCH_BYTES = 5000\nprocess.BATCH_BYTES = 20_000\n"
    start, _, end = child_process._PROGRAM.partition("from ")
    monkeypatch.setattr(child_process, "_PROGRAM", f"{start}\n{program}from {end}")
    PROCESS.close()
    inventory = Inventory.scan(["m.parquet"])
    assert [(item.id, item.data) for item in inventory] == list(zip(ids, BIG, strict=True))
    for start, stop in ((650, 700), (3, 5), (190, 460), (191, 192), (0, 700)):
        assert [item.data for item in inventory.items(start, stop)] == BIG[start:stop]
    PROCESS.close()


def test_kept_columns_have_the_types_of_the_first_file_with_them():
    for name, kind in (("a", pa.int8()), ("b", pa.int32())):
        moments = pa.array([5], pa.int64()).view(pa.timestamp("ms" if name == "a" else "ns"))
        columns = {"image": [name], "n": pa.array([1], kind), "at": moments}
        write(f"{name}.parquet", **columns, x=[1] if name == "a" else ["one"])
    Path("c.jsonl").write_text('{"image": "c", "n": 2, "x": {"k": 1}, "at": null}\n')
    keep = ReadOptions(keep=("n", "at", "x"))
    inventory = Inventory.scan(["b.parquet", "a.parquet", "c.jsonl"], keep)
    inventory.check_kept()
    table = inventory.kept_table(0, 3)
    assert [str(kind) for kind in table.schema.types] == ["int32", "timestamp[ns]", "string"]
    assert table["n"].to_pylist() == [1, 1, 2]
    assert table["at"].cast(pa.int64()).to_pylist() == [5, 5_000_000, None]
    assert table["x"].to_pylist() == ["one", "1", '{"k":1}']
    inventory = Inventory.scan(["a.parquet", "b.parquet"], keep)
    message = r"b.parquet: the kept column 'at' has values of type timestamp\[ns\] that do not fit"
    with pytest.raises(UsageError, match=rf"{message} timestamp\[ms\], its type in the first file"):
        inventory.check_kept()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "int64"),
        ([1, 2.5], "double"),
        ([1, "a"], "string"),
        ([None], "string"),
        ([{"a": 1}], "string"),
        ([[], [1]], "list<item: int64>"),
        ([True, None], "bool"),
        ([2**64], "string"),
        ([*[[]] * 1000, ["a"]], "list<item: string>"),
        ([*[1] * 1000, 2.5], "double"),
    ],
    ids=str,
)
def test_kept_columns_of_json_have_the_type_of_their_values(values, kind):
    lines = (json.dumps({"image": "a", "kept": value}) for value in values)
    Path("m.jsonl").write_text("\n".join(lines))
    inventory = Inventory.scan(["m.jsonl"], ReadOptions(keep=("kept",)))
    table = inventory.kept_table(0, len(values))
    assert str(table.schema.field("kept").type) == kind
    if kind != "string":
        assert table["kept"].to_pylist() == values


# --- damage


def test_rows_of_damaged_images_keep_their_ids():
    ids = [f"id {n}" for n in range(len(BIG))]
    write(image=BIG, id=ids, _row_group_size=100, _use_dictionary=False, _compression="none")
    column = pq.read_metadata("m.parquet").row_group(2).column(0)
    data = bytearray(Path("m.parquet").read_bytes())
    data[column.data_page_offset : column.data_page_offset + 8] = b"\xff" * 8
    Path("m.parquet").write_bytes(data)
    found = items()
    assert codes(found) == [None] * 200 + ["decode_failed"] * 100 + [None] * 400
    assert [item.id for item in found] == ids


class PlainKeys(encryption.KmsClient):
    """Hands keys out to anyone."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def write_encrypted(
    table: pa.Table, *columns: str, name: str = "m.parquet", **options: Any
) -> None:
    settings = encryption.EncryptionConfiguration("k", column_keys={"k": columns}, **options)
    factory = encryption.CryptoFactory(lambda _: PlainKeys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(name, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table, row_group_size=2)


def test_rows_of_encrypted_images_keep_their_ids():
    table = pa.table({"image": [b"x", b"y", b"z"], "id": ["a", "b", "c"], "kept": [1, 2, 3]})
    write_encrypted(table, "image", plaintext_footer=True)
    inventory = Inventory.scan(["m.parquet"], ReadOptions(keep=("kept",)))
    found = list(inventory)
    assert [item.id for item in found] == ["a", "b", "c"]
    assert all(item.fault for item in found)
    assert inventory.kept_table(0, 3).to_pydict() == {"kept": [1, 2, 3]}


def test_file_with_an_encrypted_footer_is_rejected():
    write_encrypted(pa.table({"image": ["x.png"]}), "image")
    with pytest.raises(ManifestError, match=r"^m.parquet is not a readable Parquet file$"):
        items()


def test_text_that_is_not_utf8_fails_its_row_group():
    raw = pa.array([b"a", b"\xff", b"c", b"d"])
    names = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    write(image=["a"] * 4, word=names, _row_group_size=2)
    assert codes(items(keep=("word",))) == ["decode_failed"] * 2 + [None] * 2
    assert codes(items()) == [None] * 4


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 9, b"PAR1\x15\xff\xff\x04\0\0\0PAR1"])
def test_file_that_is_not_a_table_is_rejected(data):
    Path("m.parquet").write_bytes(data)
    with pytest.raises(ManifestError, match=r"m.parquet is not a readable Parquet file"):
        items()


def test_process_that_dies_is_started_again():
    write(image=BIG)
    inventory = Inventory.scan(["m.parquet"])
    for number in range(3):
        os.kill(PROCESS._process.pid, signal.SIGKILL)
        assert [item.data for item in inventory.items(number, 100)] == BIG[number:100]


def test_request_that_kills_the_process_fails_its_row_group(monkeypatch):
    """Twice, as the process also dies with the thread that started it."""
    write(image=BIG, _row_group_size=100)
    inventory = Inventory.scan(["m.parquet"])
    ask = child_process.ServedProcess._ask

    def dying(self: Any, request: dict[str, Any], seconds: float | None) -> Any:
        if request["columns"] and 200 <= request["start"] < 300:
            self.close()
            raise child_process.ProcessFailed
        return ask(self, request, seconds)

    monkeypatch.setattr(child_process.ServedProcess, "_ask", dying)
    assert codes(list(inventory)) == [None] * 200 + ["too_large"] * 100 + [None] * 400


def test_process_has_no_module_of_the_current_folder():
    write(image=["a"])
    Path("json.py").write_text("raise SystemExit('imported')")
    PROCESS.close()
    assert len(items()) == 1


# --- bombs

LIMITED = """
import resource, sys, threading, time
from pathlib import Path
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.parquet import PROCESS
options = ReadOptions(**eval(sys.argv[1]))
peak = 0
def watch():
    global peak
    while True:
        if PROCESS._process is not None:
            try:
                text = Path(f"/proc/{PROCESS._process.pid}/status").read_text()
                peak = max([peak, *(int(l.split()[1]) for l in text.splitlines() if "VmHWM" in l)])
            except (OSError, AttributeError):
                pass
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
inventory = Inventory.scan(["m.parquet"], options)
found = [item.fault.code if item.fault else "ok" for item in inventory.items(0, 300)]
if inventory.kept:
    inventory.kept_table(0, min(300, inventory.total))
status = Path("/proc/self/status").read_text()
own = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
print(inventory.total, own, peak, *found)
"""


def read_in_process(options: str = "{}") -> tuple[int, list[str]]:
    """The number of rows and the faults of the first; this process stays small, and its child."""
    with ends_soon():
        total, own, peak, *found = run_python(LIMITED, options).split()
    assert int(own) < 500_000, f"{own} kB"
    assert int(peak) < 5_500_000, f"{peak} kB"
    return int(total), found


def zeros_repeated(size: int, rows: int, kind: Callable[[], pa.DataType] = pa.binary) -> pa.Array:
    word = pa.array([b"\0" * size if kind is pa.binary else "\0" * size], kind())
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), word)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
@pytest.mark.parametrize("column", ["image", "struct", "kept", "prompt", "id"])
def test_dictionary_bomb_fails_its_row_group(column):
    """A few kilobytes that unpack to 7.7 GB, between row groups of plain rows."""
    good = {"image": [b"x"] * 3, "kept": ["a"] * 3, "prompt": ["p"] * 3}
    bad: dict[str, Any] = {name: values * 40 for name, values in good.items()}
    kind = pa.binary if column in ("image", "struct") else pa.string
    bomb = zeros_repeated(2**26, 120, kind)
    name = "image" if column == "struct" else column
    bad[name] = bomb
    if column == "id":
        good["id"] = ["a", "b", "c"]
    if column == "struct":
        bad[name] = pa.StructArray.from_arrays([bomb], names=["bytes"])
        good[name] = [{"bytes": b"x"}] * 3
    parts = [pa.table(good), pa.table(bad), pa.table(good)]
    if column == "id":
        parts[2] = parts[2].set_column(3, "id", [["d", "e", "f"]])
    schema = parts[1].schema
    with pq.ParquetWriter("m.parquet", schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part.cast(schema), row_group_size=1000)
    assert Path("m.parquet").stat().st_size < 100_000
    options = {"kept": "{'keep': ('kept',)}", "prompt": "{'requires_prompts': True}"}
    total, found = read_in_process(options.get(column, "{}"))
    assert total == 126
    assert found == ["ok"] * 3 + ["too_large"] * 120 + ["ok"] * 3
    if column == "kept":  # a column that is not read costs nothing
        assert read_in_process()[1] == ["ok"] * 126


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
@pytest.mark.parametrize("column", ["kept", "prompt", "id"])
@pytest.mark.slow
def test_thirty_million_nulls_end_in_seconds(column):
    rows = 300_000 if column == "id" else 30_000_000  # ids are read row by row
    write(image=pa.nulls(rows, pa.string()), **{column: pa.nulls(rows, pa.string())})
    assert Path("m.parquet").stat().st_size < 150_000
    if column == "id":
        with ends_soon():
            assert set(codes(items())) == {"missing"}
        return
    options = {"kept": "{'keep': ('kept',)}", "prompt": "{'requires_prompts': True}"}
    total, found = read_in_process(options[column])
    assert total == rows
    assert set(found) == {"missing" if column == "kept" else "no_prompt"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
def test_page_of_zeros_fails_its_row_group():
    """The bytes of one page unpack to more than a process may have."""
    data = [b"z", b"\0" * (700 * 2**20)]
    schema = pa.schema([("image", pa.large_binary())])
    with pq.ParquetWriter(
        "m.parquet", schema, compression="zstd", use_dictionary=False, write_batch_size=1
    ) as writer:
        for values in ([b"x"], data, [b"y"]):
            writer.write_table(pa.table({"image": pa.array(values, pa.large_binary())}))
    assert Path("m.parquet").stat().st_size < 1_000_000
    total, found = read_in_process()
    assert (total, found[0], found[2:]) == (4, "ok", ["too_large", "ok"])


def test_cell_above_the_limit_fails_its_row():
    cells = [b"a", RANDOM.bytes(2**26 + 2**20), b"c"]
    write(image=cells, id=["x", "y", "z"], _compression="none")
    found = items()
    assert codes(found) == [None, "too_large", None]
    assert [item.id for item in found] == ["x", "y", "z"]


@pytest.mark.slow
def test_large_images_that_repeat_are_read():
    """The file does not state their sizes: they are in its dictionary, which many rows refer to."""
    images = [RANDOM.bytes(900_000) for _ in range(20)]
    words = pa.array(np.repeat(np.arange(20, dtype=np.int32), 50))
    array = pa.DictionaryArray.from_arrays(words, pa.array(images, pa.binary()))
    write(image=array, _compression="none", _dictionary_pagesize_limit=2**30)
    assert Path("m.parquet").stat().st_size < 20_000_000
    assert all(item.data == images[item.index // 50] for item in Inventory.scan(["m.parquet"]))


def test_kept_columns_of_many_bytes_are_null_where_they_are_a_bomb(monkeypatch):
    monkeypatch.setattr(parquet, "MAX_TABLE_BYTES", 2**20)
    write(image=["a"] * 100, kept=zeros_repeated(2**20, 100, pa.string), _compression="zstd")
    inventory = Inventory.scan(["m.parquet"], ReadOptions(keep=("kept",)))
    kept = inventory.kept_table(0, 100)["kept"]
    assert kept.null_count > 90
    assert sum(len(text) for text in kept.to_pylist() if text) <= 2**25
