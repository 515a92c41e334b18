"""Results of a file or an engine: sequences, tables and notebook display."""

import json
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace

import numpy
import pandas
import polars
import pytest

import pgcli
from pgcli.errors import OutputExists, UsageError
from pgcli.output.schema import TYPES
from pgcli.records import COLUMNS, Choice, Mask
from pgcli.rle import encode_mask
from pgcli.rows import RowSchema
from tests.support.exporting import BOX, answer, box, detections, refused, save
from tests.support.pages import Parsed
from tests.support.runs import run_python

OUTPUTS = ["rows.jsonl", "rows.parquet", "rows/"]
ANSWERS = [
    answer(0, task="detect", boxes=(BOX,), kept={"sku": "x-1"}),
    refused(1, kept={"sku": None}),
    answer(2, answer="\U0001f600", kept={"sku": "x-3"}),
]


@pytest.fixture(params=OUTPUTS)
def file(request, tmp_path) -> Path:
    save(f"{tmp_path}/{request.param}", *ANSWERS, keep=("sku",))
    return tmp_path / request.param


def test_read_returns_the_answers_of_the_run(file):
    results = pgcli.read(file)
    assert list(results) == ANSWERS
    assert pgcli.read(str(file)) == results == pgcli.Results(iter(ANSWERS))


def test_results_are_a_sequence():
    results = pgcli.Results(one for one in ANSWERS)
    assert len(results) == 3
    assert results[-1] is ANSWERS[2]
    assert results[1:] == pgcli.Results(ANSWERS[1:])
    assert isinstance(results[:1], pgcli.Results)
    assert [one.index for one in results] == [0, 1, 2]
    assert ANSWERS[1] in results
    assert results.errors == pgcli.Results([ANSWERS[1]])
    assert repr(results) == "<Results: 3 answers, 1 failed>"
    assert repr(results[:1]) == "<Results: 1 answer>"
    assert repr(pgcli.Results([])) == "<Results: 0 answers>"
    with pytest.raises(IndexError):
        results[3]


def test_tables_have_the_columns_types_and_values_of_files(file):
    results = pgcli.read(file)
    table = results.to_arrow()
    names = [name for name in TYPES if name in COLUMNS]
    assert table.column_names == [*names, "sku"]
    assert all(table.schema.field(name).type == TYPES[name] for name in names)
    layout = RowSchema(keep=("sku",))
    assert table.to_pylist() == [layout.row(one) for one in ANSWERS]
    frame = results.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["error"].isna()) == [True, False, True]
    other = results.to_polars()
    assert isinstance(other, polars.DataFrame)
    assert other["boxes"].list.len().to_list() == [1, 0, 0]


def test_answers_of_several_tasks_share_a_table():
    mixed = [*ANSWERS, answer(3, choices=(Choice("yes", -0.5, 1.0),), kept={"other": 1})]
    table = pgcli.Results(mixed).to_arrow()
    assert table.column_names[-3:] == ["choices", "sku", "other"]
    assert table["other"].to_pylist() == [None, None, None, 1]
    assert pgcli.Results([]).to_arrow().num_rows == 0


def test_dicts_are_the_rows_of_the_file(tmp_path):
    for extras, changes in (((), {}), (("masks",), {"task": "segment", "masks": ()})):
        rows = [answer(0, logprob=-0.123456789, **changes), refused(1, task=changes.get("task"))]
        save(tmp_path / f"{len(extras)}.jsonl", *rows, extras=extras)
        lines = (tmp_path / f"{len(extras)}.jsonl").read_text().splitlines()
        dicts = pgcli.Results(rows).to_dicts()
        assert dicts == [json.loads(line) for line in lines]
        assert list(dicts[0]) == list(json.loads(lines[0]))


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_saved_results_are_read_back(tmp_path, name):
    results = pgcli.Results(ANSWERS)
    results.save(tmp_path / name)
    assert pgcli.read(tmp_path / name) == results
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with pytest.raises(OutputExists):
        results.save(tmp_path / name)
    results[:1].save(str(tmp_path / name), overwrite=True)
    assert pgcli.read(tmp_path / name) == results[:1]


def test_output_of_a_run_and_other_endings_are_not_replaced(tmp_path):
    save(tmp_path / "run.jsonl", answer())
    for name, error in (("run.jsonl", OutputExists), ("x.csv", UsageError), ("x/", UsageError)):
        with pytest.raises(error) as refusal:
            pgcli.Results(ANSWERS).save(f"{tmp_path}/{name}", overwrite=True)
        assert refusal.value.hint


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_missing_library_is_named_with_its_install_command(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        getattr(pgcli.Results(ANSWERS), f"to_{name}")()


def test_file_without_rows_is_rejected(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"index": 0}\n')
    for name in ("x.jsonl", "none.jsonl"):
        with pytest.raises(UsageError) as refusal:
            pgcli.read(tmp_path / name)
        assert refusal.value.hint


# --- notebook display


HOSTILE = "<script>alert(1)</script><img src=x onerror=y>\x1b[2J\u202e&amp;\"'"


def test_foreign_text_is_text_in_a_notebook():
    hostile = answer(0, id=HOSTILE, prompt=HOSTILE, answer=HOSTILE)
    failed = refused(1, code=HOSTILE, message=HOSTILE)
    text = pgcli.Results([hostile, failed])._repr_html_()
    page = Parsed(text)
    assert {name for name, _ in page.tags} == {"p", "table", "tbody", "tr", "td"}
    assert not any(names for _, names in page.tags)
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_an_answer_prints_the_values_that_are_not_empty():
    shown = repr(answer(7, boxes=(BOX,), embedding=array("f", [1.0] * 300)))
    assert shown.startswith("Answer(index=7, id='7.png', image='images/7.png', width=640,")
    assert "boxes=(Box(label='red car'" in shown
    assert "embedding=<300 numbers>" in shown
    for name in ("error", "masks", "kept", "choices", "truncated"):
        assert f"{name}=" not in shown
    assert "truncated=False" in repr(answer(truncated=False))
    assert "tokens=0" in repr(answer(tokens=0))


# --- from an engine, and on import


def test_import_sets_no_handlers_and_imports_nothing_heavy():
    code = (
        "import logging, signal, sys\n"
        "def state():\n"
        "    handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}\n"
        "    root = logging.getLogger()\n"
        "    return handlers, list(root.handlers), root.level, sys.excepthook\n"
        "before = state()\n"
        "import pgcli\n"
        "dir(pgcli)\n"
        "heavy = {'numpy', 'PIL', 'transformers', 'safetensors', 'tokenizers', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "import pgcli.api, pgcli.results\n"
        "pgcli.Results, pgcli.read, pgcli.load, pgcli.Answer\n"
        "assert state() == before\n"
        "heavy = {'torch', 'pandas', 'polars', 'pyarrow', 'typer', 'rich', 'tqdm'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    run_python(code)


def test_supervision_example_converts_boxes_and_masks():
    """Lines of docs/how-to/use-from-python.md; test_export_tools.py runs them with supervision."""
    supervision = SimpleNamespace(
        Detections=lambda xyxy, **given: SimpleNamespace(xyxy=xyxy, **given)
    )
    grid = numpy.eye(3, 4, dtype=bool)
    whole, codes = Mask((0,) * 16, encode_mask(grid)), Mask((0,) * 16)
    both = (BOX, box("dog", 1.0, 2.0, 3.0, 4.0, score=0.25))
    several = (None, (whole, whole), (whole, codes), (None, whole))
    for boxes, masks in (((), None), *((both, masks) for masks in several)):
        converted = detections(supervision, answer(0, boxes=boxes, masks=masks))
        assert converted.xyxy.shape == (len(boxes), 4)
        assert converted.confidence.shape == converted.class_id.shape == (len(boxes),)
        assert hasattr(converted, "mask") == (masks == (whole, whole))
        if boxes:
            assert converted.xyxy.tolist() == [[12.25, 30.5, 200, 180], [1, 2, 3, 4]]
            assert converted.confidence.tolist() == [0.9375, 0.25]
            assert converted.class_id.tolist() == [1, 0]
        if masks == (whole, whole):
            assert (converted.mask == grid).all()
            assert converted.mask.shape == (2, 3, 4)
