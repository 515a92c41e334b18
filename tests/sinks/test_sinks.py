"""Rows read back from what the sinks write."""

import errno
import io
import json
import math
import os
import resource
import signal
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.records import COLUMNS, EXTRA_COLUMNS, TIMING_COLUMNS, Answer, Box, Choice, Mask, Rle
from pgcli.rows import BOX_NUMBERS, RowSchema
from pgcli.sinks import parquet_file
from pgcli.state import shard
from tests.support.answers import BOX, answer, refused
from tests.support.save_rows import saving

#: The files that may remain in the state folder of a complete output.
LEFT = {"lock", "run.json", "progress.json", "chunks", "inputs", "log.txt"}


def write(path, answers, **options):
    with saving(path, **options) as sink:
        for each in answers:
            sink.save(each)
    return path


def interrupted(path, answers, **options):
    """Write the answers in a run that the user then interrupts."""

    def stopped():
        yield from answers
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, stopped(), **options)


def rows_of(path):
    """The rows of a file, read by other libraries."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def plain(each):
    """The row of an answer according to the contract."""
    row = {name: value for name, value in asdict(each).items() if name in COLUMNS}
    return row | {"boxes": list(row["boxes"])} | dict(each.kept)


MASKED = Mask(tuple(range(16)), Rle((480, 640), "PPYo0"))


def test_masks_and_choices_come_before_kept_columns(output):
    answers = [
        answer(0, masks=(MASKED, None, Mask((7,) * 16)), kept={"a": 1}),
        answer(1, masks=(), kept={"a": 2}),
        refused(2, kept={"a": 3}),
    ]
    write(output, answers, extras=("masks",), keep=("a",))
    first, second, third = rows_of(output)
    assert tuple(first) == (*COLUMNS, "masks", "a")
    assert first["masks"] == [
        {"codes": list(range(16)), "rle": {"size": [480, 640], "counts": "PPYo0"}},
        None,
        {"codes": [7] * 16, "rle": None},
    ]
    assert (second["masks"], third["masks"]) == ([], None)


def test_choices_have_logprob_and_probability(output):
    picked = (Choice("yes", -0.123456789, 0.9), Choice("no", -12.5, 0.1))
    write(output, [answer(choices=picked, tokens=None, finish=None)], extras=("choices",))
    (row,) = rows_of(output)
    assert tuple(row) == (*COLUMNS, "choices")
    assert row["choices"] == [
        {"text": "yes", "logprob": -0.123457, "probability": 0.9},
        {"text": "no", "logprob": -12.5, "probability": 0.1},
    ]


@pytest.mark.parametrize("name", EXTRA_COLUMNS)
def test_optional_column_names_are_free_in_other_runs(output, name):
    write(output, [answer(kept={name: "mine"})], keep=(name,))
    (row,) = rows_of(output)
    assert row[name] == "mine"
    with pytest.raises(UsageError, match=name):
        RowSchema(extras=(name,), keep=(name,))


def test_choices_are_lines_below_the_answer():
    stream = io.BytesIO()
    picked = (Choice("yes", -0.1, 0.905), Choice("n\x1bo", -2.5, 0.095))
    with saving("-", format="text", extras=("choices",), stdout=stream) as sink:
        sink.save(answer(answer="yes", choices=picked))
    assert stream.getvalue().decode().splitlines() == [
        "0.png: yes",
        "   90.5% yes",
        "    9.5% n\\x1bo",
    ]


class Terminal(io.BytesIO):
    def isatty(self):
        return True


@pytest.fixture(params=[".jsonl", ".parquet"])
def output(request, tmp_path):
    return tmp_path / f"out{request.param}"


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(shard, "CHUNK_ROWS", 2)


# columns and values


def test_row_has_standard_columns_then_kept_ones(output):
    kept = {"b": 2, "a": "x", "not asked for": 1}
    write(output, [answer(kept=kept)], keep=("a", "b"))
    (row,) = rows_of(output)
    assert tuple(row) == (*COLUMNS, "a", "b")
    assert row == plain(answer(boxes=(), kept={"a": "x", "b": 2}))


def test_boxes_are_a_list_of_structs(output):
    write(output, [answer(boxes=(BOX, BOX)), answer(1)])
    rows = rows_of(output)
    assert rows[0]["boxes"] == [asdict(BOX)] * 2
    assert list(rows[0]["boxes"][0]) == ["label", *BOX_NUMBERS]
    assert rows[1]["boxes"] == []


def test_error_row_has_nulls_and_no_boxes(output):
    write(output, [refused(width=None, height=None)])
    (row,) = rows_of(output)
    assert row["error"] == "truncated"
    assert row["answer"] is row["tokens"] is row["width"] is None
    assert row["boxes"] == []


def test_no_timing_nulls_only_timing_columns(output):
    write(output, [answer()], timing=False)
    (row,) = rows_of(output)
    assert {name for name in COLUMNS if row[name] is None} == {
        *TIMING_COLUMNS,
        "error",
        "error_message",
    }


def test_numbers_are_rounded_and_nan_is_null(output):
    box = Box("cat", 1 / 3, 2000 / 3, math.inf, 1.0, 1e-9 / 3, 1 / 3)
    write(output, [answer(load_ms=1 / 3, logprob=math.nan, boxes=(box,))])
    (row,) = rows_of(output)
    assert row["load_ms"] == 0.333
    assert row["logprob"] is None
    assert row["boxes"][0] == {
        "label": "cat",
        "xmin": 0.333333,
        "ymin": 666.667,
        "xmax": None,
        "ymax": 1.0,
        "score": 3.33333e-10,
        "confidence": 0.333333,
    }


@pytest.mark.parametrize("side", [1, 7, 640, 99_991])
def test_corner_rounds_back_to_its_location_token(output, side):
    exact = [value / 1023 * side for value in range(1024)]
    boxes = tuple(Box("x", corner, 0.0, float(side), 1.0, 1.0) for corner in exact)
    write(output, [answer(boxes=boxes)])
    (row,) = rows_of(output)
    assert [round(box["xmin"] / side * 1023) for box in row["boxes"]] == list(range(1024))


def test_hostile_text_reads_back_unchanged(output):
    text = '\x1b]0;x\x07 "\\ \n\t\u2028\u202e\x7f\x9b 猫🐈 <script> [red] {a} %s'
    write(output, [answer(id=text, answer=text, prompt=text, kept={"k": text})], keep=("k",))
    (row,) = rows_of(output)
    assert [row[name] for name in ("id", "answer", "prompt", "k")] == [text] * 4


def test_lone_surrogate_leaves_file_readable(output):
    write(output, [answer(error_message="a\udcff", kept={"k": ["\ud800"]})], keep=("k",))
    (row,) = rows_of(output)
    assert (row["error_message"], row["k"]) == ("a\ufffd", ["\ufffd"])
    read = polars.read_ndjson if output.suffix == ".jsonl" else polars.read_parquet
    assert read(output)["error_message"].to_list() == ["a\ufffd"]


@pytest.mark.parametrize("keep", [("answer",), ("index", "a"), ("a", "a")])
def test_kept_column_with_duplicate_name_is_refused(keep):
    with pytest.raises(UsageError, match="--keep"):
        RowSchema(keep=keep)


# formats


def test_pipe_gets_each_json_line_immediately():
    pipe = io.BufferedWriter(raw := io.BytesIO(), 1 << 20)
    with saving("-", stdout=pipe) as sink:
        for count in (1, 2):
            sink.save(answer(answer="猫"))
            assert raw.getvalue().count(b"\n") == count
    assert not pipe.closed
    assert "猫".encode() in raw.getvalue()


def test_terminal_gets_text_lines():
    terminal = Terminal()
    write("-", [answer(boxes=(BOX,)), refused(1), answer(2, answer="")], stdout=terminal)
    assert terminal.getvalue().decode() == (
        "0.png: a car\n"
        "  red car 12,30 - 200,180 (0.94)\n"
        "1.png: error truncated: it ends early\n"
        "2.png:\n"
    )


@pytest.mark.parametrize("format", ["auto", "jsonl", "text"])
def test_no_control_character_reaches_a_terminal(format):
    hostile = "\x1b[2J\x07\x9b\x7f\u202e\udcff\n"
    bad = [
        answer(id=hostile, answer=hostile, boxes=(Box(hostile, 0.0, 0.0, 1.0, 1.0, 1.0),)),
        refused(id=hostile, message=hostile),
    ]
    write("-", bad, format=format, stdout=(terminal := Terminal()))
    shown = terminal.getvalue().decode()
    assert not set("\x1b\x07\x9b\x7f\u202e") & set(shown)
    assert shown.count("\n") == (2 if format == "jsonl" else 3)


def test_format_option_chooses_the_format(tmp_path):
    write("-", [answer()], format="text", stdout=(pipe := io.BytesIO()))
    assert pipe.getvalue() == b"0.png: a car\n"
    write("-", [answer()], format="jsonl", stdout=(terminal := Terminal()))
    assert json.loads(terminal.getvalue()) == plain(answer())
    assert write(tmp_path / "notes", [answer()], format="text").read_text() == "0.png: a car\n"
    assert len(rows_of(write(tmp_path / "x.ndjson", [answer()], format="jsonl"))) == 1


def test_file_ending_ignores_case(tmp_path):
    assert pq.read_table(write(tmp_path / "A.PARQUET", [answer()])).num_rows == 1


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("parts/", "jsonl"),
        ("", "auto"),
        ("out.csv", "auto"),
        ("out", "auto"),
        ("out.parquet", "jsonl"),
        ("out.jsonl", "text"),
        ("nowhere/out.jsonl", "auto"),
        ("folder.jsonl", "auto"),
    ],
)
def test_invalid_output_name_is_refused_with_a_hint(tmp_path, monkeypatch, name, format):
    monkeypatch.chdir(tmp_path)
    Path("folder.jsonl").mkdir()
    with pytest.raises(UsageError) as refusal, saving(name, format=format):
        pytest.fail("it was opened")
    assert refusal.value.hint


# existing outputs


def test_existing_output_is_refused_before_any_work(output):
    output.write_text("old")
    with pytest.raises(OutputExists) as refusal, saving(output):
        pytest.fail("it was opened")
    assert "--overwrite" in refusal.value.hint
    assert output.read_text() == "old"


def test_dangling_link_counts_as_existing_output(output):
    output.symlink_to("nowhere")
    with pytest.raises(OutputExists), saving(output):
        pytest.fail("it was opened")


def test_overwrite_keeps_old_output_until_first_row(output):
    output.write_text("old")
    interrupted(output, [], overwrite=True)
    assert output.read_text() == "old"
    write(output, [answer()], overwrite=True)
    assert rows_of(output) == [plain(answer())]


def test_failed_run_without_rows_leaves_no_files(output):
    interrupted(output, [])
    assert list(output.parent.iterdir()) == []


def test_run_of_no_rows_makes_empty_output(output):
    assert rows_of(write(output, [], keep=("a",))) == []
    assert sorted(path.name for path in output.parent.iterdir()) == [
        output.name,
        f"{output.name}.pgcli",
    ]


def test_output_created_during_the_run_is_not_replaced(output):
    def meanwhile():
        output.write_text("another's")
        yield answer()

    with pytest.raises(OutputExists) as refusal:
        write(output, meanwhile())
    assert output.read_text() == "another's"
    if output.suffix == ".parquet":  # the rows are not lost
        finished = Path(f"{output}.pgcli") / "whole"
        assert str(finished) in refusal.value.hint
        assert pq.read_table(finished).num_rows == 1


# failures


def test_rows_before_a_failure_remain_in_jsonl(tmp_path):
    path = tmp_path / "out.jsonl"
    interrupted(path, [answer(0), answer(1)])
    assert rows_of(path) == [plain(answer(0)), plain(answer(1))]


def test_full_disk_leaves_whole_lines(tmp_path):
    path = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OutputFailed, match=r"out\.jsonl") as failure:
            write(path, map(answer, range(100)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert failure.value.hint
    kept = rows_of(path)
    assert kept == [plain(answer(index)) for index in range(len(kept))]
    assert 10 < len(kept) < 100
    assert path.read_bytes().endswith(b"\n")


def test_full_standard_output_is_output_failed():
    full = io.FileIO("/dev/full", "w")
    with full, pytest.raises(OutputFailed, match="standard output"):
        write("-", [answer()], stdout=full)


def test_closed_pipe_is_not_output_failed():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as pipe, pytest.raises(BrokenPipeError):
        write("-", [answer()], stdout=pipe)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_unwritable_parquet_chunk_is_output_failed(tmp_path, monkeypatch, small_chunks, code):
    def full(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    path = tmp_path / "out.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(OutputFailed, match=os.strerror(code)):
            write(path, map(answer, range(9)))
    assert not path.exists()
    with saving(path) as sink:
        for index in range(sink.next_row, 9):
            sink.save(answer(index))
    assert [row["index"] for row in rows_of(path)] == list(range(9))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_output_failed(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputFailed), saving(tmp_path / "out.jsonl"):
        pytest.fail("it was opened")


# Parquet


def test_parquet_file_appears_only_when_complete(tmp_path, small_chunks):
    path, state = tmp_path / "out.parquet", tmp_path / "out.parquet.pgcli"
    with saving(path) as sink:
        for index in range(5):
            sink.save(answer(index))
            assert not path.exists()
        assert not list(tmp_path.rglob("*.parquet"))
        assert len(list(state.rglob("parts/*"))) == 2
    assert [row["index"] for row in rows_of(path)] == [0, 1, 2, 3, 4]
    assert pq.ParquetFile(path).num_row_groups == 3
    assert {file.name for file in state.iterdir()} <= LEFT


def test_interrupted_overwrite_keeps_rows_and_old_output(tmp_path, small_chunks):
    path = tmp_path / "out.parquet"
    path.write_text("old")
    interrupted(path, map(answer, range(5)), overwrite=True)
    assert path.read_text() == "old"
    with saving(path) as sink:
        assert sink.next_row == 5
        sink.save(answer(5))
    assert [row["index"] for row in rows_of(path)] == [0, 1, 2, 3, 4, 5]


def test_more_rows_join_a_complete_parquet_file(tmp_path, small_chunks):
    path = write(tmp_path / "out.parquet", map(answer, range(5)))
    for more in range(5, 9):
        write(path, [answer(more)])
        assert [row["index"] for row in rows_of(path)] == list(range(more + 1))


def test_folder_has_only_complete_files(tmp_path, small_chunks):
    path = tmp_path / "out"
    with saving(f"{path}/") as sink:
        for index in range(5):
            sink.save(answer(index))
            assert len(list(path.glob("*")) if path.exists() else []) == (index + 1) // 2
            for file in path.glob("*"):
                assert pq.read_table(file).num_rows == 2
    names = [file.name for file in sorted(path.iterdir())]
    assert names == [f"part-00000{number}.parquet" for number in range(3)]
    assert [row["index"] for row in pq.read_table(path).to_pylist()] == [0, 1, 2, 3, 4]
    write(f"{path}/", [answer(5), answer(6)])
    assert [row["index"] for row in pq.read_table(path).to_pylist()] == list(range(7))


def test_overwrite_clears_the_state_of_a_killed_run(tmp_path, small_chunks):
    path = tmp_path / "out.parquet"
    interrupted(path, map(answer, range(3)))
    state = tmp_path / "out.parquet.pgcli"
    (state / "whole").write_text("torn")
    write(path, [answer(7)], overwrite=True)
    assert [row["index"] for row in rows_of(path)] == [7]
    assert {file.name for file in state.iterdir()} <= LEFT


def test_parquet_metadata_has_settings_known_at_the_end(tmp_path):
    known = {"task": "ask", "seed": None}
    path = tmp_path / "out.parquet"
    with saving(path, settings=known) as sink:
        sink.save(answer())
        known["revision"] = "abc"
    stored = json.loads(pq.read_schema(path).metadata[b"pgcli"])
    assert stored == {"task": "ask", "seed": None, "revision": "abc"}


def test_parquet_columns_have_specific_types(tmp_path):
    schema = pq.read_schema(write(tmp_path / "out.parquet", [answer(kept={"k": 1})], keep=("k",)))
    repeated = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    for name in ("task", "prompt", "finish", "model", "error"):
        assert schema.field(name).type == repeated
    assert schema.field("index").type == schema.field("k").type == pyarrow.int64()
    assert pyarrow.types.is_struct(schema.field("boxes").type.value_type)


def test_large_values_make_smaller_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_file, "MAX_GROUP_BYTES", 10_000)
    rows = [answer(k, kept={"k": ["x" * 4000]}) for k in range(7)]
    path = write(tmp_path / "out.parquet", rows, keep=("k",))
    assert pq.ParquetFile(path).num_row_groups == 4


KEPT = [
    ([1, 2, 3, 4], "int64", None),
    ([1, None, None, None, 2], "int64", None),
    ([None, None, 2.5], "double", None),
    ([1, 2, 2.5, None], "double", None),
    ([True, None, None, False], "bool", None),
    (["a", "b", None], "string", None),
    ([None, None, None], "string", None),
    ([1, None, None, "x"], "string", ["1", None, None, "x"]),
    (["x", "y", 1, True, 2.5, [1]], "string", ["x", "y", "1", "true", "2.5", "[1]"]),
    ([1, 2, True, False], "string", ["1", "2", "true", "false"]),
    ([2**60 + 1, 1, 0.5], "string", ["1152921504606846977", "1", "0.5"]),
    ([2**70, 1, 2], "string", [str(2**70), "1", "2"]),
    ([[], [], ["a"]], "list<element: string>", None),
    ([[1], None, [2.5], []], "list<element: double>", None),
    ([None, [], [[None, None]], [["a"]]], "list<element: list<element: string>>", None),
    ([None, [], [[None, None]]], "list<element: list<element: null>>", None),
    ([{"a": 1}, {"a": 2}], "string", ['{"a":1}', '{"a":2}']),
    ([{}, None, [{"b": "ü"}]], "string", ["{}", None, '[{"b":"ü"}]']),
    (
        [date(2020, 1, 1), datetime(2020, 1, 1, 5)],
        "string",
        ["2020-01-01", "2020-01-01 05:00:00"],
    ),
    ([[1], 2, [["a"]]], "string", ["[1]", "2", '[["a"]]']),
]


@pytest.mark.parametrize(("values", "kind", "read"), KEPT, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("part", [1, 2, 100])
def test_kept_column_has_common_type_of_its_values(tmp_path, monkeypatch, values, kind, read, part):
    monkeypatch.setattr(shard, "CHUNK_ROWS", part)
    rows = [answer(index, kept={"a.b": value}) for index, value in enumerate(values)]
    path = write(tmp_path / "out.parquet", rows, keep=("a.b",))
    assert str(pq.read_schema(path).field("a.b").type) == kind
    assert pq.read_table(path)["a.b"].to_pylist() == (values if read is None else read)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=3)
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_no_kept_value_stops_a_run(tmp_path_factory, small_chunks, examples):
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(json_values, max_size=7))
    def check(values):
        folder = tmp_path_factory.mktemp("kept")
        rows = [answer(index, kept={"k": value}) for index, value in enumerate(values)]
        table = pq.read_table(write(folder / "out.parquet", rows, keep=("k",)))
        lines = rows_of(write(folder / "out.jsonl", rows, keep=("k",)))
        assert len(table) == len(lines) == len(values)
        nulls = [value is None for value in table["k"].to_pylist()]
        assert nulls == [row["k"] is None for row in lines]

    check()


# other libraries


text = st.text(max_size=8)
count = st.none() | st.integers(0, 2**31 - 1)
milliseconds = st.none() | st.integers(0, 10**9).map(lambda micros: micros / 1000)
number = st.floats(-1e6, 1e6).map(lambda value: float(f"{value:.6g}"))
boxes = st.lists(st.builds(Box, text, number, number, number, number, number), max_size=3)
made_answers = st.lists(
    st.builds(
        Answer,
        index=st.integers(0, 2**62),
        id=text,
        image=text,
        width=count,
        height=count,
        task=st.sampled_from(["caption", "ask", "detect", "ocr"]),
        prompt=text,
        answer=st.none() | text,
        boxes=boxes.map(tuple),
        tokens=count,
        finish=st.sampled_from([None, "stop", "length"]),
        logprob=st.none() | number,
        load_ms=milliseconds,
        vision_ms=milliseconds,
        prefill_ms=milliseconds,
        decode_ms=milliseconds,
        batch=count,
        model=text,
        error=st.none() | st.sampled_from(["truncated", "missing"]),
        error_message=st.none() | text,
        kept=st.fixed_dictionaries({"k": st.none() | st.integers(-(2**63), 2**63 - 1)}),
    ),
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(made_answers)
def test_rows_read_back_equal_from_both_formats(tmp_path_factory, answers):
    folder = tmp_path_factory.mktemp("round")
    for name in ("out.jsonl", "out.parquet"):
        path = write(folder / name, answers, keep=("k",))
        assert rows_of(path) == [plain(each) for each in answers]


ROWS = [
    answer(0, boxes=(BOX,), kept={"k": 1}),
    refused(1, kept={"k": None}),
    answer(2, prompt="猫?", boxes=(BOX, BOX), kept={"k": 3}),
]


def nulls(value):
    """The null values of pandas as None, arrays as lists."""
    if isinstance(value, list) or hasattr(value, "tolist"):
        return [nulls(inner) for inner in value] if hasattr(value, "__len__") else value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def read_with(library, path):
    suffix = path.suffix
    if library == "polars":
        read = polars.read_ndjson if suffix == ".jsonl" else polars.read_parquet
        return read(path).to_dicts()
    if library == "pandas":
        read = pandas.read_json if suffix == ".jsonl" else pandas.read_parquet
        options = {"lines": True} if suffix == ".jsonl" else {}
        records = read(path, **options).to_dict("records")
        return [{name: nulls(value) for name, value in row.items()} for row in records]
    if library == "duckdb":
        table = duckdb.sql(f"select * from '{path}' order by index")
        return [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()]
    read = pyarrow.json.read_json if suffix == ".jsonl" else pq.read_table
    return read(path).to_pylist()


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars", "duckdb"])
def test_common_libraries_read_the_rows(output, library):
    write(output, ROWS, keep=("k",))
    assert read_with(library, output) == [plain(each) for each in ROWS]


def test_boxes_unnest_in_duckdb(tmp_path):
    path = write(tmp_path / "out.parquet", ROWS)
    found = duckdb.sql(f"select index, unnest(boxes, recursive := true) from '{path}'").fetchall()
    assert [row[0] for row in found] == [0, 2, 2]
    assert found[0][1:] == tuple(asdict(BOX).values())
