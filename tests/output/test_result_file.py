"""Result files are complete or absent, with columns in their own types."""

import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.json
import pytest
from pyarrow import parquet as pq

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.output import result_target, write_result_file
from pgcli.output.reader import read_results, state_folder
from pgcli.records import COLUMNS, Answer, Box
from pgcli.rows import RowSchema
from tests.support.exporting import BOX, answer, refused

ENDINGS = [".jsonl", ".parquet"]


@pytest.fixture(params=ENDINGS)
def target(request, tmp_path) -> Path:
    return tmp_path / f"out{request.param}"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, as other libraries read them."""
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(target: Path, answers: list[Answer], **columns: Any) -> Path:
    schema = RowSchema(**columns)
    write_result_file(result_target(str(target)), map(schema.row, answers), schema)
    return target


def plain(each: Answer) -> dict[str, Any]:
    """An answer's row according to the contract."""
    row = {name: value for name, value in asdict(each).items() if name in COLUMNS}
    return row | {"boxes": list(row["boxes"])} | dict(each.kept)


# --- kept columns


def test_value_that_does_not_fit_its_column_is_named(tmp_path):
    row = RowSchema().row(answer()) | {"width": "wide"}
    with pytest.raises(UsageError, match="does not fit the columns of a table"):
        write_result_file(result_target(str(tmp_path / "a.parquet")), [row], RowSchema())
    assert list(tmp_path.iterdir()) == []
    assert write_result_file(result_target(str(tmp_path / "a.jsonl")), [row], RowSchema()) == 1


# --- round trips, and other libraries


ROWS = [
    answer(0, boxes=(BOX,), kept={"k": 1}),
    refused(1, kept={"k": None}),
    answer(2, prompt="猫?", boxes=(BOX, BOX), kept={"k": 3}),
]


def test_rows_read_back_equal_also_at_the_limits_of_their_types(target):
    numbers = {"index": 2**62, "width": 2**31 - 1, "load_ms": 1e9 / 1000, "logprob": -1e6}
    box = Box("", -1e6, 1e-6, 0.0, 1e6, 1.0, 0.0)
    answers = [
        *ROWS,
        answer(id="", answer="", prompt="\u2028\0", boxes=(box,), kept={"k": 2**63 - 1}, **numbers),
        refused(3, message="", height=None, kept={"k": -(2**63)}),
    ]
    write(target, answers, keep=("k",))
    assert rows_of(target) == list(read_results(target)) == [plain(each) for each in answers]
    assert [RowSchema(keep=("k",)).answer(row) for row in read_results(target)] == answers
    again = target.with_stem("again")
    write_result_file(
        result_target(str(again)), read_results(target, exact=True), RowSchema(keep=("k",))
    )
    if target.suffix == ".jsonl":
        assert again.read_bytes() == target.read_bytes()
    else:
        assert pq.read_table(again).equals(pq.read_table(target))


def nulls(value: Any) -> Any:
    """The null values of pandas as None, arrays as lists."""
    if isinstance(value, list) or hasattr(value, "tolist"):
        return [nulls(inner) for inner in value] if hasattr(value, "__len__") else value.item()
    return None if isinstance(value, float) and value != value else value


def read_with(library: str, path: Path) -> list[dict[str, Any]]:
    is_jsonl = path.suffix == ".jsonl"
    if library == "polars":
        return (polars.read_ndjson if is_jsonl else polars.read_parquet)(path).to_dicts()
    if library == "pandas":
        frame = pandas.read_json(path, lines=True) if is_jsonl else pandas.read_parquet(path)
        records = frame.to_dict("records")
        return [{str(name): nulls(value) for name, value in row.items()} for row in records]
    if library == "duckdb":
        table = duckdb.sql(f"select * from '{path}' order by index")
        return [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()]
    read = pyarrow.json.read_json if is_jsonl else pq.read_table
    rows: list[dict[str, Any]] = read(path).to_pylist()
    return rows


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars", "duckdb"])
def test_common_libraries_read_the_rows(target, library):
    write(target, ROWS, keep=("k",))
    assert read_with(library, target) == [plain(each) for each in ROWS]


def test_integers_that_pandas_made_fractions_are_integers(target):
    """Beside the nulls of a failed row, pandas has no integers."""
    write(target, [answer(0), replace(refused(1), width=None, height=None)])
    if target.suffix == ".parquet":
        pandas.read_parquet(target).to_parquet(target)
    else:
        pandas.read_json(target, lines=True).to_json(target, orient="records", lines=True)
    row, failed = read_results(target)
    names = ("index", "width", "height", "tokens", "batch")
    assert [row[name] for name in names] == [plain(answer(0))[name] for name in names]
    assert all(type(row[name]) is int for name in names)
    assert failed["width"] is None


# --- files


def test_file_without_rows_has_its_columns(target):
    assert write_result_file(result_target(str(target)), [], RowSchema(keep=("a",))) == 0
    assert rows_of(target) == list(read_results(target)) == []
    assert [file.name for file in target.parent.iterdir()] == [target.name]
    if target.suffix == ".parquet":
        assert pq.read_schema(target).names == [*COLUMNS, "a"]


def test_existing_file_is_replaced_only_with_overwrite(target):
    target.write_text("old")
    with pytest.raises(OutputExists) as refusal:
        write_result_file(result_target(str(target)), [], RowSchema())
    assert "--overwrite" in refusal.value.hint
    assert target.read_text() == "old"
    write_result_file(
        result_target(str(target), overwrite=True), [RowSchema().row(answer())], RowSchema()
    )
    assert rows_of(target) == [plain(answer())]


def test_file_may_be_written_from_its_own_rows(target):
    write(target, ROWS, keep=("k",))
    before = rows_of(target)
    rows = (row for row in read_results(target, exact=True) if row["index"] != 1)
    assert (
        write_result_file(result_target(str(target), overwrite=True), rows, RowSchema(keep=("k",)))
        == 2
    )
    assert rows_of(target) == [before[0], before[2]]


def test_file_created_meanwhile_is_not_replaced(target):
    def rows() -> Any:
        yield RowSchema().row(answer())
        target.write_text("another's")

    with pytest.raises(OutputExists):
        write_result_file(result_target(str(target)), rows(), RowSchema())
    assert target.read_text() == "another's"
    assert list(target.parent.iterdir()) == [target]


def test_failure_leaves_no_file(target, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputFailed, match="No space"):
            write(target, ROWS)

    def broken() -> Any:
        yield RowSchema().row(answer())
        raise UsageError("it cannot be read")

    with pytest.raises(UsageError, match="it cannot be read"):
        write_result_file(result_target(str(target)), broken(), RowSchema())
    assert list(target.parent.iterdir()) == []


def test_names_that_cannot_be_written_are_errors(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "folder.jsonl" / "file").touch()
    run = tmp_path / "run.jsonl"
    state_folder(run).mkdir()
    (state_folder(run) / "run.json").write_text("{}")
    for name, error in (
        ("-", UsageError),
        ("x.csv", UsageError),
        ("x", UsageError),
        ("folder.jsonl/file/x.jsonl", UsageError),
        ("folder.jsonl", UsageError),
        ("run.jsonl", OutputExists),
    ):
        with pytest.raises(error) as refusal:
            result_target(str(tmp_path / name) if name != "-" else "-", overwrite=True)
        assert refusal.value.hint
