"""Rows as lines of JSON and of text, and lines read back."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgcli.errors import UsageError
from pgcli.output import output_format
from pgcli.output.lines import MAX_LEVELS, json_line, parse_row, read_lines, read_rows, text_lines
from pgcli.records import (
    COLUMNS,
    EXTRA_COLUMNS,
    TIMING_COLUMNS,
    Box,
    Choice,
    LabelProbability,
    TextScore,
)
from pgcli.rows import RowSchema
from tests.support.exporting import BOX, answer, refused

HOSTILE = '\x1b]0;x\x07 "\\ \n\t\u2028\u202e\x7f\x9b 猫🐈 <script> [red] {a} %s'
CONTROLS = set("\x1b\x07\x9b\x7f\u202e")


def row_of(line: str) -> dict[str, Any]:
    row = parse_row(line.encode())
    assert row is not None
    return row


# --- JSON


def test_no_timing_nulls_only_timing_columns():
    row = row_of(json_line(answer(), RowSchema(timing=False)))
    nulls = {name for name in COLUMNS if row[name] is None}
    assert nulls == {*TIMING_COLUMNS, "error", "error_message"}


def test_numbers_are_rounded_and_nan_is_null():
    box = Box("cat", 1 / 3, 2000 / 3, math.inf, 1.0, 1e-9 / 3, 1 / 3)
    row = row_of(json_line(answer(load_ms=1 / 3, logprob=math.nan, boxes=(box,)), RowSchema()))
    assert (row["load_ms"], row["logprob"]) == (0.333, None)
    numbers = {"xmin": 0.333333, "ymin": 666.667, "xmax": None, "ymax": 1.0}
    assert row["boxes"] == [
        {"label": "cat", **numbers, "score": 3.33333e-10, "confidence": 0.333333}
    ]


@pytest.mark.parametrize("side", [1, 7, 640, 99_991])
def test_corner_rounds_back_to_its_location_token(side):
    exact = [value / 1023 * side for value in range(1024)]
    boxes = tuple(Box("x", corner, 0.0, float(side), 1.0, 1.0) for corner in exact)
    row = row_of(json_line(answer(boxes=boxes), RowSchema()))
    assert [round(box["xmin"] / side * 1023) for box in row["boxes"]] == list(range(1024))


def test_hostile_text_reads_back_unchanged():
    hostile = answer(id=HOSTILE, answer=HOSTILE, prompt=HOSTILE, kept={"k": HOSTILE})
    for ascii_only in (False, True):
        line = json_line(hostile, RowSchema(keep=("k",)), ascii_only=ascii_only)
        row = row_of(line)
        assert [row[name] for name in ("id", "answer", "prompt", "k")] == [HOSTILE] * 4
        assert line.count("\n") == 1
        assert line.isascii() == ascii_only
        assert not (CONTROLS if ascii_only else CONTROLS - {"\u202e"}) & set(line)


@pytest.mark.parametrize("name", EXTRA_COLUMNS)
def test_optional_column_names_are_free_in_other_runs(name):
    row = row_of(json_line(answer(kept={name: "mine"}), RowSchema(keep=(name,))))
    assert row[name] == "mine"
    with pytest.raises(UsageError, match=name):
        RowSchema(extras=(name,), keep=(name,))


# --- lines read back


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"5\n",
        b"[]\n",
        b"null\n",
        b'{"a":1\n',
        b'{"a":\0}\n',
        b"\xff\n",
        nested(MAX_LEVELS + 2),
        nested(100_000),
    ],
)
def test_other_lines_are_not_rows(line):
    assert parse_row(line) is None


def test_rows_nest_as_deep_as_a_manifest_and_a_row_around():
    assert parse_row(nested(MAX_LEVELS)) is not None


def test_rows_end_before_an_incomplete_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}')
    assert list(read_lines(file)) == [b'{"a":1}\n', b'{"a":2}\n', b'{"a":3}']
    assert list(read_rows(file)) == [{"a": 1}, {"a": 2}]
    file.write_bytes(b'{"a":1}\nnothing\n{"a":2}\n')
    assert list(read_rows(file)) == [{"a": 1}]


# --- text


def test_text_shows_prompts_and_boxes_in_place_of_tokens():
    text = "<loc0010><loc0020><loc0030><loc0040><seg001> star ; <loc0571><loc0002> on  white"
    row = answer(answer=text, prompt="detect star", boxes=(BOX,))
    shown = "0.png, detect star: star ; on white\n  red car 12,30 - 200,180 (0.94)\n"
    assert text_lines(row, with_prompt=True) == shown


def test_text_has_a_line_for_each_choice_score_and_label():
    choices = (Choice("yes", -0.1, 0.905), Choice("n\x1bo", -2.5, 0.095))
    scores = (TextScore("a", 0.25, 0.125, 0.5), TextScore("b", 0.5, None, 0.5))
    for changes, expected in (
        ({"choices": choices}, ["   90.5% yes", "    9.5% n\\x1bo"]),
        (
            {"scores": scores},
            ["   50.0% a (cosine 0.250, score 0.125)", "   50.0% b (cosine 0.500)"],
        ),
        ({"labels": (LabelProbability("cat", 0.75),)}, ["   75.0% cat"]),
    ):
        assert text_lines(answer(answer="x", **changes)).splitlines() == ["0.png: x", *expected]


def test_text_of_an_embedding_is_its_first_values():
    from array import array

    row = answer(task="embed", answer=None, text="a cat", embedding=array("f", [0.5] * 6))
    shown = "0.png: a cat: 0.500, 0.500, 0.500, 0.500, ... (6 values)\n"
    assert text_lines(row) == shown


def test_no_control_character_reaches_a_terminal():
    hostile = "\x1b[2J\x07\x9b\x7f\u202e\udcff\n"
    box = Box(hostile, 0.0, 0.0, 1.0, 1.0, 1.0)
    rows = [
        answer(id=hostile, answer=hostile, boxes=(box,)),
        refused(id=hostile, message=hostile),
    ]
    shown = "".join(map(text_lines, rows))
    assert not CONTROLS & set(shown)
    assert shown.count("\n") == 3


# --- names of outputs


@pytest.mark.parametrize(
    ("name", "option", "expected"),
    [
        ("a.jsonl", "auto", ".jsonl"),
        ("A.PARQUET", "auto", ".parquet"),
        ("a.parquet/", "auto", "/"),
        ("a", "jsonl", ".jsonl"),
        ("a.ndjson", "jsonl", ".jsonl"),
        ("notes", "text", "text"),
        ("notes.txt", "text", "text"),
    ],
)
def test_name_or_option_chooses_the_format(name, option, expected):
    assert output_format(name, option) == expected


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("parts/", "jsonl"),
        ("", "auto"),
        ("", "jsonl"),
        ("out.csv", "auto"),
        ("out", "auto"),
        ("out.parquet", "jsonl"),
        ("out.jsonl", "text"),
    ],
)
def test_invalid_output_name_is_an_error_with_a_hint(name, option):
    with pytest.raises(UsageError) as refusal:
        output_format(name, option)
    assert refusal.value.hint


def test_lines_need_no_pyarrow(tmp_path):
    from tests.support.exporting import captioned, make_images, saved

    file = saved(tmp_path / "a.jsonl", captioned(make_images(tmp_path / "images"), "one", "two"))
    code = (
        "import sys; from pathlib import Path\n"
        "import pgcli.output as output\n"
        "from pgcli.output import lines, reader\n"
        "from pgcli.rows import RowSchema\n"
        f"rows = list(reader.read_results(Path({str(file)!r})))\n"
        f"target = Path({str(tmp_path / 'b.jsonl')!r})\n"
        "written = output.result_target(str(target))\n"
        "output.write_result_file(written, rows, RowSchema.of(rows[0]))\n"
        "assert not {'pyarrow', 'numpy', 'torch'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=root)
    assert (tmp_path / "b.jsonl").read_bytes().count(b"\n") == 2
    assert json.loads((tmp_path / "b.jsonl").read_bytes().splitlines()[1])["answer"] == "two"
