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

from pgcli.arrow import MISMATCHES
from pgcli.errors import UsageError
from pgcli.output import tables as table_files
from pgcli.output.reader import read_settings
from pgcli.output.schema import rows_table
from pgcli.output.tables import PARQUET, PartInfo, part_metadata
from pgcli.records import Answer
from pgcli.rows import RowSchema
from tests.support.exporting import answer, refused

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
def test_embeddings_are_lists_of_one_length(tmp_path, monkeypatch, dim):
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
    monkeypatch.setattr(table_files, "TABLE_ROWS", 1)
    with (tmp_path / "rows.parquet").open("wb") as file:
        PARQUET.write(file, map(schema.row, [answers[0], *answers, answers[0]]), schema)
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["embedding"].to_pylist() == [None, None, list(values), None]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 3)


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
        part_metadata(INFO) | {b"pgcli.rows": b"-1"},
        part_metadata(INFO) | {b"pgcli.first": b"x"},
        part_metadata(INFO) | {b"pgcli.errors": b"[" * 100_000},
        part_metadata(INFO) | {b"pgcli.run": b"\xff"},
    ]
    for metadata in bad:
        assert PARQUET.part_info(written(tmp_path / "x", [table_of([answer()])], metadata)) is None
    (tmp_path / "y").write_text("text")
    for source in (tmp_path / "none", tmp_path, tmp_path / "y", io.BytesIO(b"PAR1")):
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
    ([1, None, None, "x"], "string", ["1", None, None, "x"]),
    (["x", "y", 1, True, 2.5, [1]], "string", ["x", "y", "1", "true", "2.5", "[1]"]),
    ([2**70, 1, 2], "string", [str(2**70), "1", "2"]),
    ([[], [], ["a"]], "list<element: string>", None),
    ([[1], None, [2.5], []], "list<element: double>", None),
    ([None, [], [[None, None]]], "list<element: list<element: null>>", None),
    ([{"a": 1}, {"a": 2}], "string", ['{"a":1}', '{"a":2}']),
    ([{}, None, [{"b": "ü"}]], "string", ["{}", None, '[{"b":"ü"}]']),
    ([[1], 2, [["a"]]], "string", ["[1]", "2", '[["a"]]']),
]


def write_kept(path: Path, values: Sequence[Any]) -> pa.Table:
    """The table of a result file with these values in a kept column."""
    schema = RowSchema(keep=("a.b",))
    with path.open("wb") as file:
        PARQUET.write(file, (schema.row(answer(kept={"a.b": value})) for value in values), schema)
    return pq.read_table(path)


@pytest.mark.parametrize(("values", "kind", "read"), JSON_COLUMNS, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_kept_column_has_the_common_type_of_its_values(
    tmp_path, monkeypatch, values, kind, read, size
):
    monkeypatch.setattr(table_files, "TABLE_ROWS", size)
    table = write_kept(tmp_path / "a.parquet", values)
    assert str(table.schema.field("a.b").type) == kind
    assert table["a.b"].to_pylist() == (values if read is None else read)
    assert [*tmp_path.iterdir()] == [tmp_path / "a.parquet"]


# --- files


def test_row_groups_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_GROUP_BYTES", 10_000)
    answers = [answer(k, answer="x" * (4000 if k < 6 else 20_000)) for k in range(7)]
    file = pq.ParquetFile(written(tmp_path / "a.parquet", [table_of(answers)]))
    rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sum(rows) == 7
    assert max(rows) == 2
    assert rows[-1] == 1


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
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_files, "TABLE_ROWS", size)
            try:
                table = write_kept(file, values)
            except UsageError:  # of values in several tables
                assert size < len(values)
                return
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
