"""Rows are read back from every form of output: complete, in progress and damaged."""

import json
import os
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pgcli.output.reader
import pgcli.output.tables
from pgcli.errors import UsageError
from pgcli.output import part_name
from pgcli.output.lines import json_line
from pgcli.output.reader import indexed_rows, read_results, state_folder
from pgcli.output.schema import rows_table
from pgcli.output.tables import PARQUET, PartInfo, part_metadata
from pgcli.records import Answer
from pgcli.rows import RowSchema
from tests.support.exporting import BOX, answer, refused

FORMS = ["rows.jsonl", "rows.parquet", "rows/"]
PART_ROWS = 4
ANSWERS = [
    replace(refused(n) if n % 5 == 1 else answer(n, boxes=(BOX,) * (n % 3)), kept={"sku": n})
    for n in range(12)
]
SCHEMA = RowSchema(keep=("sku",))
ROWS = [json.loads(json_line(each, SCHEMA)) for each in ANSWERS]


def lines(answers: Iterable[Answer], schema: RowSchema = SCHEMA) -> bytes:
    return b"".join(json_line(each, schema).encode() for each in answers)


def write_part(file: Path, first: int, rows: Sequence[Any], run: str = "run") -> None:
    info = PartInfo(run, first, len(rows), {}, {"task": "ask"})
    with file.open("wb") as stream:
        PARQUET.write_tables(stream, [rows_table(rows, SCHEMA)], part_metadata(info))


def write(folder: Path, name: str, count: int, run: str = "run") -> Path:
    """An output in its final form with the first `count` rows."""
    output = folder / name
    if name.endswith("/"):
        output.mkdir()
        for first in range(0, count, PART_ROWS):
            rows = ROWS[first : min(count, first + PART_ROWS)]
            write_part(output / part_name(first // PART_ROWS), first, rows)
    elif name.endswith(".parquet"):
        write_part(output, 0, ROWS[:count], run)
    else:
        output.write_bytes(lines(ANSWERS[:count]))
    return output


def leave(output: Path, first: int, stop: int, shard: str = "", end: bytes = b"") -> Path:
    """A file of lines that a command or a shard left in its state, without the kept column."""
    folder = state_folder(output) / (f"shard-{shard}-of-9/open" if shard else "open")
    folder.mkdir(parents=True, exist_ok=True)
    (state_folder(output) / "run.json").write_text(json.dumps({"run_id": "run"}))
    file = folder / f"{first:012}.jsonl"
    file.write_bytes(lines(ANSWERS[first:stop], RowSchema(exact=True)) + end)
    return file


def numbers(output: Path) -> list[int]:
    """The numbers of the rows, after a check of the rows themselves."""
    found = []
    for number, row in indexed_rows(output):
        assert row is not None
        assert {**row, "sku": row.get("sku") or number} == ROWS[number] | {"sku": number}
        found.append(number)
    return found


# --- complete outputs


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_every_form_are_the_same(tmp_path, name):
    output = write(tmp_path, name, 12)
    assert list(read_results(output)) == ROWS
    assert list(indexed_rows(output)) == list(enumerate(ROWS))


def test_exact_rows_have_cells_of_kept_columns(tmp_path):
    for name in FORMS:
        rows = list(read_results(write(tmp_path, name, 12), exact=True))
        assert [getattr(row["sku"], "json", row["sku"]) for row in rows] == [*range(12)]
        assert hasattr(rows[0]["sku"], "json") == (name != "rows.jsonl")
        assert [row["answer"] for row in rows] == [row["answer"] for row in ROWS]


def test_parts_are_read_by_their_first_rows(tmp_path):
    """Even if another program has rewritten one of them; other files are not parts."""
    output = write(tmp_path, "rows/", 12)
    with (output / part_name(1)).open("wb") as stream:
        PARQUET.write_tables(stream, [rows_table(ROWS[4:8], SCHEMA)])
    for foreign in ("part-00000-x.snappy.parquet", "part-1.parquet", "other.parquet"):
        (output / foreign).write_bytes(b"")
    assert numbers(output) == [*range(12)]
    (output / part_name(1)).unlink()
    assert numbers(output) == [*range(4), *range(8, 12)]


# --- outputs of running and stopped runs


@pytest.mark.parametrize("name", FORMS)
def test_the_final_form_is_read_before_open_files(tmp_path, name):
    output = write(tmp_path, name, 8)
    file = leave(output, 4, 12)
    file.write_bytes(file.read_bytes().replace(b'"a car"', b'"other"'))
    rows = list(read_results(output))
    assert [row["sku"] for row in rows] == [*range(8), *[None] * 4]  # which open files lack
    answers = [(row["answer"], row["error"]) for row in rows]
    assert answers[:8] == [(row["answer"], row["error"]) for row in ROWS[:8]]
    assert [answer for answer, error in answers[8:] if error is None] == ["other"] * 3


@pytest.mark.parametrize("end", [b'{"index":3', b"\0\0\0\0\n", b"\n", b'{"in\0', b"[]\n"])
def test_only_whole_lines_count(tmp_path, end):
    output = tmp_path / "rows/"
    leave(output, 0, 3, end=end)
    leave(output, 3, 6, "1")
    assert numbers(output) == [*range(6)]
    leave(output, 0, 3, end=end + lines(ANSWERS[3:4]))
    assert numbers(output) == [*range(6)]


def test_line_that_is_being_appended_is_read_from_the_open_file(tmp_path):
    output = write(tmp_path, "rows.jsonl", 4)
    leave(output, 3, 7)
    whole = output.read_bytes()
    for size in range(len(lines(ANSWERS[:3])), len(whole)):
        output.write_bytes(whole[:size])
        assert numbers(output) == [*range(7)]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows/"])
def test_rows_that_move_to_the_final_form_meanwhile_are_read(tmp_path, name):
    output = write(tmp_path, name, 4)
    first, second = leave(output, 4, 8), leave(output, 8, 12, "1")
    reading = indexed_rows(output)
    assert [next(reading)[0] for _ in range(4)] == [0, 1, 2, 3]
    if name == "rows/":
        write_part(output / part_name(1), 4, ROWS[4:8])
        write_part(output / part_name(2), 8, ROWS[8:])
    else:
        output.write_bytes(lines(ANSWERS))
    first.unlink()
    second.unlink()
    assert [number for number, _ in reading] == [*range(4, 12)]


def test_other_names_in_the_state_folder_are_ignored(tmp_path):
    output = write(tmp_path, "rows.jsonl", 2)
    file = leave(output, 2, 4)
    for name in (".000000000004.jsonl.part", "4.jsonl", "000000000004-x.jsonl", "notes"):
        file.with_name(name).write_bytes(lines(ANSWERS[4:]))
    file.with_name(f"{4:012}.jsonl").symlink_to("nowhere")
    assert numbers(output) == [*range(4)]
    os.mkfifo(file.with_name(f"{5:012}.jsonl"))
    with pytest.raises(UsageError, match="not a regular file"):
        list(read_results(output))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMS),
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.binary(max_size=2)), max_size=5),
)
def test_every_saved_row_is_read_once(tmp_path_factory, name, final, files):
    """From a final form and any open files, which may overlap and be truncated."""
    folder = tmp_path_factory.mktemp("state")
    output = write(folder, name, final)
    for shard, (first, stop, end) in enumerate(files):
        leave(output, first, max(first, stop), str(shard), end)
    saved = {*range(final)}.union(*(range(first, stop) for first, stop, _ in files))
    assert numbers(output) == sorted(saved)


# --- unreadable files


def test_damaged_rows_are_named(tmp_path):
    output = write(tmp_path, "rows.jsonl", 4)
    whole = output.read_bytes()
    for size in range(len(lines(ANSWERS[:3])) + 1, len(whole)):
        output.write_bytes(whole[:size])
        assert len(list(read_results(output))) == 3
        assert list(indexed_rows(output))[3] == (3, None)
    for content, row in (
        (b"cut\n" + whole, 1),
        (lines(ANSWERS[:1]) + b"cut\n" + lines(ANSWERS[1:2]), 3),
        (b"{", 1),
        (whole[: len(whole) // 2] + b"\0\0" + whole[len(whole) // 2 :] + b"{", 4),
    ):
        output.write_bytes(content)
        with pytest.raises(UsageError, match=f"row {row} is not a result row: it is truncated"):
            list(read_results(output))


def test_rows_without_a_column_are_an_error(tmp_path):
    row = dict(ROWS[0])
    del row["boxes"], row["error"]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match="row 1 is not a result row: it has no 'boxes', 'error'"):
        list(read_results(tmp_path / "rows.jsonl"))
    vector = {"index": 0, "embedding": [0.5], "error": None}
    (tmp_path / "rows.jsonl").write_text(json.dumps(vector) + "\n")
    with pytest.raises(UsageError, match="it has no 'id', 'image'"):
        list(read_results(tmp_path / "rows.jsonl"))


def test_columns_nested_too_deeply_are_an_error(tmp_path):
    kind = pa.int8()
    for _ in range(500):
        kind = pa.list_(kind)
    table = pa.table({"id": ["a"], "deep": pa.nulls(1, kind)})
    with (tmp_path / "rows.parquet").open("wb") as file:
        PARQUET.write_tables(file, [table])
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_results(tmp_path / "rows.parquet"))


def test_paths_without_rows_are_errors(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "text.parquet").write_text("text")
    for name, reason in (
        ("none.jsonl", "does not exist"),
        ("folder", "has no result files"),
        ("fifo.jsonl", "is not a regular file"),
        ("text.parquet", "cannot be read"),
        ("x" * 248 + ".jsonl", "too long"),
    ):
        with pytest.raises(UsageError, match=reason) as refusal:
            list(read_results(tmp_path / name))
        assert refusal.value.hint


def test_damaged_bytes_are_rows_or_an_error(tmp_path):
    """Truncated or changed at any byte of any form; nothing else is raised."""
    change = random.Random(5)
    for name in FORMS:
        output = write(tmp_path, name, 6)
        file = output / part_name(1) if output.is_dir() else output
        whole = file.read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(change.randrange(1, 4)):
                data[change.randrange(len(data))] = change.randrange(256)
            file.write_bytes(data[: change.choice([len(data), change.randrange(len(data))])])
            with suppress(UsageError):
                assert len(list(read_results(output))) <= 7


def parquet_rows(file: Path, answers: pa.Array, **options: Any) -> None:
    """Write rows with these answers, as another program may."""
    table = rows_table([ROWS[0]] * len(answers), SCHEMA)
    place = table.schema.get_field_index("answer")
    pa.parquet.write_table(table.set_column(place, "answer", answers), file, **options)


@pytest.mark.parametrize("kind", ["dictionary", "text", "plain", "groups"])
@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_few_bytes_that_unpack_to_gigabytes_are_an_error(tmp_path, monkeypatch, kind, exact):
    """At a quarter of the real sizes: texts of 4 MiB, and memory for 64 of them."""
    monkeypatch.setattr(pgcli.output.tables, "READ_BYTES", 2**28)
    texts = pa.array(["z" * 2**22])
    answers = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), texts)
    file = tmp_path / "rows.parquet"
    options: dict[str, Any] = {"compression": "zstd"}
    if kind == "text":
        options["store_schema"] = False  # so that the column is read as text
    elif kind == "plain":
        answers, options["use_dictionary"] = pa.array(["z" * 2**22] * 80), False
    elif kind == "groups":
        options["row_group_size"] = 20  # each small enough
    parquet_rows(file, answers, **options)
    assert file.stat().st_size < 2**18
    with pytest.raises(UsageError, match=r"rows.parquet unpacks to suspiciously many bytes") as no:
        for _ in read_results(file, exact=exact):
            pass
    assert "use_dictionary=False" in no.value.hint


@pytest.mark.parametrize("group", [20, 1000])
@pytest.mark.parametrize("exact", [False, True])
def test_large_rows_are_read(tmp_path, monkeypatch, group, exact):
    """A few at a time: here 1,000 rows of 200 kB, with memory for a third of them."""
    monkeypatch.setattr(pgcli.output.tables, "READ_BYTES", 2**26)
    monkeypatch.setattr(pgcli.output.tables, "BATCH_BYTES", 2**23)
    answers = pa.array([random.Random(n).randbytes(10**5).hex() for n in range(1000)])
    file = tmp_path / "rows.parquet"
    options = {"compression": "none", "use_dictionary": False}
    parquet_rows(file, answers, row_group_size=group, **options)
    rows = read_results(file, exact=exact)
    assert all(row["answer"] == answer.as_py() for row, answer in zip(rows, answers, strict=True))


def test_endless_line_is_not_read_to_its_end(tmp_path):
    file = write(tmp_path, "rows.jsonl", 3)
    os.truncate(file, 2**36)
    rows = read_results(file)
    assert [row["index"] for row in islice(rows, 3)] == [0, 1, 2]
    with pytest.raises(UsageError, match="a line is longer than 128 MiB"):
        next(rows)
