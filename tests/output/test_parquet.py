"""Rows in Parquet: one type per column that other tools read, and unchanged values."""

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from pgcli.arrow_types import as_text, common_type
from pgcli.output import tables as table_files
from pgcli.output.parquet import PARQUET
from pgcli.output.promote import Cell
from pgcli.output.reader import read_settings
from pgcli.output.schema import MISMATCHES, TYPES, rows_table
from pgcli.output.tables import PartInfo, part_metadata, spool_tables
from pgcli.records import Answer
from pgcli.rows import RowSchema
from tests.support.answers import answer, refused

INFO = PartInfo("run", 20, 4, {"oom": 2}, {"task": "ask", "seed": None})


def table_of(answers: Sequence[Answer], kept: Any = None, **columns: Any) -> pa.Table:
    schema = RowSchema(**columns)
    return rows_table([schema.row(each) for each in answers], schema, kept)


def written(path: Path, tables: Any, metadata: Any = None) -> Path:
    with path.open("w+b") as file:
        PARQUET.write_tables(file, tables, metadata)
    return path


# --- types


@pytest.mark.parametrize("dim", [None, 3])
def test_embeddings_are_lists_of_one_length(tmp_path, dim):
    """In the lines of a state folder, embeddings are the text of their bytes."""
    from array import array

    values = array("f", [0.1, 0.2, 0.3])
    answers = [refused(0, task="embed", embedding=None), answer(1, task="embed", embedding=values)]
    base = ("index", "id", "embedding")
    for exact in (False, True):
        schema = RowSchema(base=base, exact=exact)
        table = rows_table([schema.row(each) for each in answers], schema, None, dim)
        assert table.schema.field("embedding").type == pa.list_(pa.float32(), 3)
        assert table["embedding"].to_pylist() == [None, list(values)]
    half = RowSchema(base=base, float16=True)
    kind = rows_table([half.row(each) for each in answers], half).schema.field("embedding").type
    assert kind == pa.list_(pa.float16(), 3)
    shorter = [RowSchema(base=base).row(answer(embedding=array("f", [1.0])))]
    with pytest.raises(MISMATCHES):
        rows_table(shorter, RowSchema(base=base), None, 3)
    without = rows_table([schema.row(answers[0])], schema)
    table = pq.read_table(written(tmp_path / "rows.parquet", lambda: [without, table]))
    assert table["embedding"].to_pylist() == [None, None, list(values)]


# --- metadata


def test_metadata_describe_the_content_of_a_file(tmp_path):
    file = written(tmp_path / "a.parquet", [table_of([answer()])], part_metadata(INFO))
    assert PARQUET.part_info(file) == INFO
    assert json.loads(pq.read_schema(file).metadata[b"pgcli"]) == {"task": "ask", "seed": None}
    assert read_settings(file) == read_settings(tmp_path) == INFO.settings
    end = file.read_bytes()[-8:]
    data = file.read_bytes()[-int.from_bytes(end[:4], "little") - 8 :]
    assert PARQUET.part_info(io.BytesIO(data)) == INFO


def test_other_files_have_no_part_info(tmp_path):
    bad: list[dict[bytes, bytes]] = [
        {},
        {b"pgcli": b"{}"},
        part_metadata(INFO) | {b"pgcli.rows": b"-1"},
        part_metadata(INFO) | {b"pgcli.first": b"x"},
        part_metadata(INFO) | {b"pgcli.errors": b"[]"},
        part_metadata(INFO) | {b"pgcli.errors": b'{"a": "b"}'},
        part_metadata(INFO) | {b"pgcli.errors": b"[" * 100_000},
        part_metadata(INFO) | {b"pgcli.run": b"\xff"},
    ]
    for metadata in bad:
        assert PARQUET.part_info(written(tmp_path / "x", [table_of([answer()])], metadata)) is None
    (tmp_path / "y").write_text("text")
    for source in (
        tmp_path / "x" / "nothing",
        tmp_path / "none",
        tmp_path,
        tmp_path / "y",
        io.BytesIO(b""),
        io.BytesIO(b"PAR1"),
    ):
        assert PARQUET.part_info(source) is None
    deep = part_metadata(INFO) | {b"pgcli": b"[" * 100_000}
    info = PARQUET.part_info(written(tmp_path / "x", [table_of([answer()])], deep))
    assert info is not None
    assert info.settings == {}


# --- kept columns


#: JSON values, the type of their column, and the values that are read back if they differ.
JSON_COLUMNS: list[tuple[list[Any], str, list[Any] | None]] = [
    ([1, 2, 3, 4], "int64", None),
    ([1, None, None, None, 2], "int64", None),
    ([None, None, 2.5], "double", None),
    ([1, 2, 2.5, None], "double", None),
    ([True, None, None, False], "bool", None),
    (["a", "b", None], "string", None),
    ([None, None, None], "string", None),
    ([None, None, 3], "int64", None),
    ([1, None, None, "x"], "string", ["1", None, None, "x"]),
    (["x", "y", 1, True, 2.5, [1]], "string", ["x", "y", "1", "true", "2.5", "[1]"]),
    ([1, 2, True, False], "string", ["1", "2", "true", "false"]),
    ([2**60 + 1, 1, 0.5], "string", ["1152921504606846977", "1", "0.5"]),
    ([0.5, 2**60 + 1], "string", ["0.5", "1152921504606846977"]),
    ([2**70, 1, 2], "string", [str(2**70), "1", "2"]),
    ([[], [], ["a"]], "list<element: string>", None),
    ([[1], None, [2.5], []], "list<element: double>", None),
    ([None, [], [[None, None]], [["a"]]], "list<element: list<element: string>>", None),
    ([None, [], [[None, None]]], "list<element: list<element: null>>", None),
    ([{"a": 1}, {"a": 2}], "string", ['{"a":1}', '{"a":2}']),
    ([{}, None, [{"b": "ü"}]], "string", ["{}", None, '[{"b":"ü"}]']),
    ([[1], 2, [["a"]]], "string", ["[1]", "2", '[["a"]]']),
]


def tables_of(values: Sequence[Any], size: int) -> list[pa.Table]:
    starts = range(0, len(values), size) if values else [0]
    return [
        table_of([answer(kept={"a.b": value}) for value in values[at : at + size]], keep=("a.b",))
        for at in starts
    ]


@pytest.mark.parametrize(("values", "kind", "read"), JSON_COLUMNS, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_kept_column_has_the_common_type_of_its_values(tmp_path, values, kind, read, size):
    tables = tables_of(values, size)
    for number, source in enumerate((tables, lambda: iter(tables))):
        file = written(tmp_path / f"{number}.parquet", source)
        assert str(pq.read_schema(file).field("a.b").type) == kind
        assert pq.read_table(file)["a.b"].to_pylist() == (values if read is None else read)


def test_iterator_of_tables_that_fit_into_the_first_is_written(tmp_path):
    file = written(tmp_path / "a.parquet", iter(tables_of([0.5, 1, None], 1)))
    assert pq.read_table(file)["a.b"].to_pylist() == [0.5, 1.0, None]
    with pytest.raises(MISMATCHES):
        written(tmp_path / "b.parquet", iter(tables_of([1, "x"], 1)))


def test_tables_are_read_again_from_a_temporary_file(tmp_path):
    with (tmp_path / "spool").open("w+b") as spool:
        read = spool_tables(iter(tables_of([1, "x"], 1)), spool)
        file = written(tmp_path / "a.parquet", read)
    assert pq.read_table(file)["a.b"].to_pylist() == ["1", "x"]


MOMENT = pa.timestamp("ms")
PROMOTED = [
    ([pa.int8(), pa.int32()], pa.int32()),
    ([MOMENT, pa.timestamp("ns")], pa.timestamp("ns")),
    ([MOMENT, pa.timestamp("ns", "UTC")], pa.string()),
    ([MOMENT, pa.string()], pa.string()),
    ([pa.decimal128(12, 2), pa.decimal128(30, 4)], pa.decimal128(30, 4)),
    ([pa.struct([("a", MOMENT)]), pa.struct([("b", pa.string())])], None),
    ([pa.list_(MOMENT), pa.null()], pa.list_(MOMENT)),
    ([pa.bool_(), pa.int8()], pa.string()),
]


@pytest.mark.parametrize(("kinds", "common"), PROMOTED, ids=str)
def test_types_of_several_results_are_promoted(tmp_path, kinds, common):
    """In Arrow columns, and in rows with values of several types."""
    columns = [
        pa.array([None, pa.scalar(0).cast(kind) if pa.types.is_primitive(kind) else None], kind)
        for kind in kinds
    ]
    wanted = common or pa.struct([("a", MOMENT), ("b", pa.string())])
    assert common_type(kinds) == wanted
    assert common_type(kinds[::-1]) == wanted or common is None  # its fields in another order
    tables = [table_of([answer()] * 2, pa.table({"k": each}), keep=("k",)) for each in columns]
    file = written(tmp_path / "a.parquet", tables)
    assert pq.read_schema(file).field("k").type == wanted
    mixed = [{"k": Cell(each, number)} for each in columns for number in (0, 1)]
    table = rows_table(mixed, RowSchema(base=(), keep=("k",)))
    assert table.schema.field("k").type == wanted
    assert table["k"].to_pylist() == pq.read_table(file)["k"].to_pylist()


def test_moments_beyond_a_unit_are_text(tmp_path):
    early = pa.table({"k": pa.array([2**50], pa.int64()).view(pa.timestamp("s"))})
    late = pa.table({"k": pa.array([1], pa.int64()).view(pa.timestamp("ns"))})
    table = pq.read_table(written(tmp_path / "a.parquet", [early, late]))
    assert table["k"].to_pylist()[1] == "1970-01-01T00:00:00.000000001"
    assert table["k"].type == pa.string()


def test_columns_that_a_table_lacks_are_null(tmp_path):
    tables = [pa.table({"a": [1]}), pa.table({"b": ["x"]}), pa.table({"a": [2], "b": ["y"]})]
    table = pq.read_table(written(tmp_path / "a.parquet", tables))
    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": "y"}]


def test_values_of_other_types_become_text():
    assert as_text([1, None, "x", [1], {"k": 1.5}]).to_pylist() == [
        "1",
        None,
        "x",
        "[1]",
        '{"k":1.5}',
    ]
    assert as_text([math.nan, "\ud800"]).to_pylist() == [None, "\ufffd"]


# --- files


def test_row_groups_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_GROUP_BYTES", 10_000)
    answers = [answer(k, answer="x" * (4000 if k < 6 else 20_000)) for k in range(7)]
    file = pq.ParquetFile(written(tmp_path / "a.parquet", [table_of(answers)]))
    rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sum(rows) == 7
    assert max(rows) == 2
    assert rows[-1] == 1


def test_row_groups_are_read_one_at_a_time(tmp_path):
    tables = [table_of([answer(k), answer(k + 1)]) for k in (0, 2)]
    file = written(tmp_path / "a.parquet", iter(tables))
    with file.open("rb") as stream:
        assert [table["index"].to_pylist() for table in PARQUET.tables(stream)] == [[0, 1], [2, 3]]
    data = io.BytesIO()
    assert PARQUET.write_tables(data, [table_of([])]) == 0
    assert [len(table) for table in PARQUET.tables(data)] == [0]
    assert TYPES["boxes"] == next(PARQUET.tables(data)).schema.field("boxes").type


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=pytest.mark.nightly)])
def test_no_kept_value_stops_a_file(tmp_path_factory, examples):
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(json_values, max_size=7), st.integers(1, 7))
    def check(values: list[Any], size: int) -> None:
        file = tmp_path_factory.mktemp("kept") / "rows.parquet"
        table = pq.read_table(written(file, tables_of(values, size)))
        table.validate(full=True)
        nulls = [value is None for value in table["a.b"].to_pylist()]
        is_nan = [isinstance(value, float) and not math.isfinite(value) for value in values]
        assert nulls == [value is None or nan for value, nan in zip(values, is_nan, strict=True)]

    check()


def test_rows_are_counted_without_reading_columns(tmp_path):
    """An untrusted file's columns may unpack to any size."""
    file = tmp_path / "rows.parquet"
    table = pa.table({"text": [f"{number} " * 20 for number in range(3000)]})
    pq.write_table(table, file, row_group_size=1000, compression="none")
    data = file.read_bytes()
    file.write_bytes(data[:4] + b"\xff" * 20_000 + data[20_004:])  # unreadable pages
    assert PARQUET.count(file) == 3000
