"""Options read from text and from Python have the same values and errors."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgcli.declare import REQUIRED, options_of, parse_keywords
from pgcli.errors import UsageError
from pgcli.run.options import (
    AnsweringOptions,
    ErrorBudget,
    InputOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.run.questions import COMMAND_OPTIONS
from pgcli.run.request import records_of
from pgcli.run.state.record import fingerprint_values
from pgcli.training.options import TRAIN_RECORDS as TRAINING

PIPES: dict[str, Any] = {"capture_output": True, "text": True}
#: An option, a value as text, the same from Python, and what both are read as.
READ: list[tuple[str, object, object, object]] = [
    ("limit", "3", 3, 3),
    ("limit", "3", np.int64(3), 3),
    ("top_p", "0.5", 0.5, 0.5),
    ("temperature", "1", 1, 1.0),
    ("keep", "a, b", ["a", "b"], ("a", "b")),
    ("keep", "a", ("a",), ("a",)),
    ("include", "a,b", ["a,b"], ("a,b",)),
    ("region", "1,2,3,4", (1, 2, 3, 4), (1.0, 2.0, 3.0, 4.0)),
    ("region", "1,2,3,4", np.array([1, 2, 3, 4]), (1.0, 2.0, 3.0, 4.0)),
    ("max_errors", "5%", "5%", ErrorBudget(max_share=0.05)),
    ("max_errors", "5", 5, ErrorBudget(5)),
    ("batch_size", "auto", "auto", None),
    ("engines", "2", 2, 2),
    ("no_timing", "yes", True, True),
    ("output", "rows.jsonl", Path("rows.jsonl"), "rows.jsonl"),
    ("quantize", "int8", "int8", "int8"),
]


def read(**keywords: object) -> dict[str, Any]:
    return parse_keywords(records_of("caption"), keywords)


@pytest.mark.parametrize(("name", "text", "value", "expected"), READ)
def test_text_and_python_give_the_same_value(name, text, value, expected):
    assert read(**{name: text}) == read(**{name: value}) == {name: expected}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("limit", 0, "must be at least 1, not 0"),
        ("limit", True, "must be a whole number, not True"),
        ("limit", 2.5, "must be a whole number, not 2.5"),
        ("top_p", 0, "must be above 0 and at most 1, not 0"),
        ("top_p", float("nan"), "must be a number, not nan"),
        ("temperature", float("inf"), "must be a number, not inf"),
        ("workers", 257, "must be between 0 and 256, not 257"),
        ("keep", 3, "must be text or a list of texts, not 3"),
        ("keep", [1], "must be text, not 1"),
        ("region", (1, 2, 3), "must be four numbers in pixels, xmin,ymin,xmax,ymax, not (1, 2, 3)"),
        ("quantize", "int4", "must be one of none, int8, fp8, not 'int4'"),
        ("batch_size", 0, "must be auto or between 1 and 999,999, not 0"),
        ("no_timing", "maybe", "must be true or false, not 'maybe'"),
        ("model", 3, "must be text, not 3"),
    ],
)
def test_wrong_value_names_its_keyword(name, value, reason):
    with pytest.raises(UsageError) as refused:
        read(**{name: value})
    assert str(refused.value).removeprefix(name).lstrip(": ").startswith(reason)
    assert refused.value.hint


def test_unknown_keyword_names_the_closest():
    with pytest.raises(UsageError, match="there is no option temprature") as refused:
        read(temprature=1)
    assert refused.value.hint == "did you mean temperature?"


def test_lists_of_training_keep_all_their_values():
    values = parse_keywords(TRAINING, {"freeze": ["vision", "projector"], "targets": "all,vision"})
    assert values == {"freeze": ("vision", "projector"), "targets": "all,vision"}
    assert parse_keywords(TRAINING, {"freeze": "vision,projector"})["freeze"] == values["freeze"]
    with pytest.raises(UsageError, match="freeze must be one of vision"):
        parse_keywords(TRAINING, {"freeze": ["vision", "head"]})
    with pytest.raises(UsageError, match="one of 'attention', 'all', 'attention,vision', 'all,vi"):
        parse_keywords(TRAINING, {"targets": "vision"})


@pytest.mark.parametrize("command", [*COMMAND_OPTIONS, "train"])
def test_defaults_are_valid_and_names_are_unique(command):
    records = TRAINING if command == "train" else records_of(command)
    options = [option for record in records for option in options_of(record)]
    assert len({option.name for option in options}) == len(options)
    for option in options:
        has_value = option.default not in (None, REQUIRED)
        is_plain = has_value and not option.repeat and option.kind is not bool
        if is_plain:
            assert option.read(option.default) == option.default, option.name
            if option.name != "warmup":  # a share, which is a text with %
                assert option.read(str(option.default)) == option.default, option.name


def test_fingerprint_has_the_options_that_rows_depend_on():
    assert fingerprint_values(ModelOptions()).keys() == {"adapter", "quantize"}
    names = "max_new_tokens system temperature top_p top_k seed region"
    assert fingerprint_values(AnsweringOptions()).keys() == {*names.split()}
    assert fingerprint_values(RunningOptions()) == {}
    assert fingerprint_values(OutputOptions()).keys() == {"no_timing", "rows_per_file"}
    names = "image_column id_column prompt_column keep include exclude max_pixels fast_decode"
    assert fingerprint_values(InputOptions()).keys() == {*names.split()}


def test_run_stays_a_function_once_the_room_is_imported():
    code = (
        "import inspect, pickle, pgcli\n"
        "first = pgcli.run\n"
        "from pgcli.run.request import RunRequest\n"
        "assert inspect.signature(pgcli.run) == inspect.signature(first)\n"
        "assert pickle.loads(pickle.dumps(pgcli.run)) is pgcli.run\n"
        "try: pgcli.run('describe', 'x', output='y.jsonl')\n"
        "except pgcli.errors.UsageError as problem: print(problem)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, timeout=100, **PIPES)
    assert shown.stdout == "describe is not a task\n"
