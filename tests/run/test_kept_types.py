"""Kept columns have the types of the first file, so that other readers accept all output files."""

import io
import json
import shutil
from datetime import datetime
from itertools import chain
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

SECOND, MICRO = datetime(2024, 1, 2, 3, 4, 5), datetime(2024, 1, 2, 3, 4, 5, 6)
US, NS = pa.timestamp("us"), pa.timestamp("ns")
#: Values of a first and of a second day as JSON, and those that the second file has.
FITTING = {
    "whole fractions": ([1, 2], [3.0, None], [3, None]),
    "integers for fractions": ([0.5, 2], [3, 2**53], [3.0, float(2**53)]),
    "numbers for texts": (["a", "b"], [5, True], ["5", "true"]),
    "anything after nulls": ([None, None], [5, "a"], ["5", "a"]),
    "objects with other keys": ([{"a": 1}], [{"b": 2}], ['{"b":2}']),
}
REFUSED = {
    "fractions": ([1, 2], [3.0, 2.5], "double", "int64"),
    "texts": ([1, 2], [3, "4"], "string", "int64"),
    "large integers for fractions": ([0.5], [2**53 + 1], "int64", "double"),
    "lists": ([1], [[1]], "list<item: int64>", "int64"),
}
#: The same of Parquet files, as columns of Arrow.
COLUMNS_FITTING = {
    "wide for narrow": (pa.array([1], pa.int32()), pa.array([7], pa.int64())),
    "units": (pa.array([SECOND], US), pa.array([MICRO], NS)),
    "dictionaries": (pa.array(["a"]), pa.array(["b"]).dictionary_encode()),
    "nulls": (pa.array([1]), pa.nulls(1)),
    "lists": (pa.array([[1]], pa.list_(pa.int32())), pa.array([[7]], pa.large_list(pa.int64()))),
}
COLUMNS_REFUSED = {
    "too wide": (pa.array([1], pa.int32()), pa.array([2**40], pa.int64())),
    "zones": (pa.array([SECOND], US), pa.array([SECOND], pa.timestamp("us", "UTC"))),
    "texts": (pa.array([1]), pa.array(["1"])),
}


@pytest.fixture(autouse=True)
def image(workdir, pretended) -> None:
    Image.new("RGB", (8, 8)).save("a.png")
    Path("days").mkdir()
    shutil.copy("a.png", "days")


KEPT = ["--keep", "score", "--model", "demo"]


def caption(cli, source: str, *words: str) -> tuple[int, str, str]:
    return cli("caption", source, *KEPT, "-o", "rows/", "--rows-per-file", "2", *words)


def append(values: list) -> None:
    with Path("m.jsonl").open("a") as file:
        file.writelines(json.dumps({"image": "a.png", "score": value}) + "\n" for value in values)


def read_by_all(rows: int) -> list:
    """The values as pyarrow has them, after other readers have read all files together."""
    files = sorted(map(str, Path("rows").glob("*.parquet")))
    assert len({pq.read_schema(file).field("score").type for file in files}) == 1
    assert len(duckdb.sql("select score from 'rows/*.parquet'").fetchall()) == rows
    assert len(pd.read_parquet("rows")) == len(pl.read_parquet("rows/*.parquet")) == rows
    return pq.read_table("rows")["score"].to_pylist()


@pytest.mark.parametrize("case", FITTING)
def test_later_values_are_cast_to_the_first_type(cli, case):
    first, second, converted = FITTING[case]
    append(first)
    assert caption(cli, "m.jsonl")[0] == 0
    before = pq.read_table("rows")["score"].to_pylist()
    append(second)
    code, _, err = caption(cli, "m.jsonl")
    assert code == 0, err
    assert read_by_all(len(first) + len(second)) == before + converted


@pytest.mark.parametrize("case", REFUSED)
def test_unfit_values_fail_before_the_model_is_loaded(cli, case, monkeypatch):
    first, second, kind, wanted = REFUSED[case]
    append(first)
    assert caption(cli, "m.jsonl")[0] == 0
    rows = pq.read_table("rows").to_pylist()
    append(second)
    monkeypatch.setattr("pgcli.run.model.load_engine", lambda *_: pytest.fail("it is loaded"))
    code, _, err = caption(cli, "m.jsonl")
    message = " ".join(err.split())
    assert code == 2, err
    assert f"has values of type {kind} that do not fit {wanted}, its type in the first" in message
    assert pq.read_table("rows").to_pylist() == rows


@pytest.mark.parametrize("case", COLUMNS_FITTING)
def test_columns_of_later_files_are_cast(cli, case):
    for number, column in enumerate(COLUMNS_FITTING[case]):
        pq.write_table(pa.table({"image": ["../a.png"], "score": column}), f"days/{number}.parquet")
        Path("days/a.png").unlink(missing_ok=True)
        code, _, err = caption(cli, "days", "--allow-outside-root")
        assert code == 0, err
    assert read_by_all(2) == [*chain(*(column.to_pylist() for column in COLUMNS_FITTING[case]))]


@pytest.mark.parametrize("case", COLUMNS_REFUSED)
def test_columns_of_another_type_fail(cli, case):
    first, second = COLUMNS_REFUSED[case]
    Path("days/a.png").unlink()
    pq.write_table(pa.table({"image": ["../a.png"], "score": first}), "days/0.parquet")
    assert caption(cli, "days", "--allow-outside-root")[0] == 0
    pq.write_table(pa.table({"image": ["../a.png"], "score": second}), "days/1.parquet")
    code, _, err = caption(cli, "days", "--allow-outside-root")
    message = " ".join(err.split())
    assert code == 2, err
    assert "days/1.parquet: the kept column 'score' has values" in message
    assert f"values of type {second.type} that do not fit {first.type}, its type" in message


def test_new_column_fails_with_keep_all(cli):
    options = ["--keep", "*", "--model", "demo", "-o", "rows/"]
    Path("m.jsonl").write_text('{"image": "a.png", "a": 1}\n')
    assert cli("caption", "m.jsonl", *options)[0] == 0
    with Path("m.jsonl").open("a") as file:
        file.write('{"image": "a.png"}\n')
    assert cli("caption", "m.jsonl", *options)[0] == 0
    with Path("m.jsonl").open("a") as file:
        file.write('{"image": "a.png", "b": 1}\n')
    code, _, err = cli("caption", "m.jsonl", *options)
    assert (code, "m.jsonl has the column 'b'" in err) == (2, True), err


@pytest.mark.parametrize("last", [3.0, "a", None])
def test_kept_columns_of_standard_input_are_text(cli, monkeypatch, last):
    lines = [json.dumps({"image": "a.png", "score": value}) for value in [1, 2, last]]
    data = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    code, _, err = caption(cli, "-")
    assert code == 0, err
    assert read_by_all(3) == ["1", "2", None if last is None else str(last)]


def test_text_of_csv_stays_as_written(cli):
    Path("m.csv").write_text("image,score\na.png,007\n")
    code, _, err = cli("caption", "m.csv", *KEPT, "-o", "rows.parquet")
    assert code == 0, err
    append([1.0])
    code, _, err = cli("caption", "m.csv", "m.jsonl", *KEPT, "-o", "both.parquet")
    assert code == 0, err
    assert pq.read_table("rows.parquet")["score"].to_pylist() == ["007"]
    assert pq.read_table("both.parquet")["score"].to_pylist() == ["007", "1.0"]


def test_lines_accept_values_of_any_type(cli):
    for values in ([1], [2.5], ["a"]):
        append(values)
        code, _, err = cli("caption", "m.jsonl", *KEPT, "-o", "rows.jsonl")
        assert code == 0, err
    lines = Path("rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [1, 2.5, "a"]
