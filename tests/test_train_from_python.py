"""`engine.train`: rows in memory or in files, the report, resume, and the trained weights."""

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from PIL import Image

import pgcli
from pgcli.errors import UsageError
from tests.support.training import draw, write_pairs

pytestmark = pytest.mark.usefixtures("clean_environment")
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "workers": 0, "batch_size": 2}


@pytest.fixture
def rows(tmp_path, monkeypatch) -> list[dict[str, Any]]:
    """Rows with an image in a file, as Pillow's image, as an array, and as bytes."""
    import numpy

    monkeypatch.chdir(tmp_path)
    for number in range(4):
        draw(Path(f"{number}.png"), number)
    images = [
        "0.png",
        Image.open("1.png"),
        numpy.array(Image.open("2.png")),
        Path("3.png").read_bytes(),
    ]
    return [
        {"image": image, "id": f"wall {number}", "prefix": "caption en", "suffix": "a wall"}
        for number, image in enumerate(images)
    ]


def test_rows_in_memory_train_an_adapter_that_loads(rows):
    engine = pgcli.load("demo", device="cpu", dtype="float32")
    settings = OPTIONS | {"steps": 3, "learning_rate": 0.01, "eval": rows[:1]}
    report = engine.train(rows[1:], output="runs", **settings)
    lines = report.metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert report.steps == 3
    assert lines[-1]["eval_loss"] < lines[0]["eval_loss"]
    assert report.best["step"] in (1, 2, 3)
    assert report.unreadable == ()
    trained = report.load(device="cpu", dtype="float32")
    before, after = (next(one.caption(["0.png"])).logprob for one in (engine, trained))
    assert before != after
    weights = Path("runs/adapter_model.safetensors").read_bytes()
    again = engine.train(rows[1:], output="runs", **settings)  # is complete
    assert (again.steps, Path("runs/adapter_model.safetensors").read_bytes()) == (3, weights)
    further = trained.train(rows[1:], output="more", steps=2, workers=0, batch_size=2)
    assert further.metrics()[0]["loss"] < lines[1]["loss"]  # it continues the engine's adapter
    record = json.loads(Path("more/run.json").read_text())["settings"]
    assert (record["dtype"], bool(record["adapter"])) == ("float32", True)


def test_dicts_train_without_an_engine(rows):
    report = pgcli.train(rows, output="runs/deep", model="demo", steps=1, eval=rows[:0], **OPTIONS)
    assert report.steps == 1
    assert report.unreadable == ()


def test_values_that_are_not_rows_are_rejected(rows):
    engine = pgcli.load("demo", device="cpu", dtype="float32")
    with pytest.raises(UsageError, match="row 1: None is not an image"):
        engine.train([rows[0], rows[1] | {"image": None}], output="runs")
    with pytest.raises(UsageError, match="DataFrame is a table"):
        engine.train(pandas.DataFrame(rows), output="runs")
    for bad in ([{"suffix": "x"}], [rows[0], "0.png"]):
        with pytest.raises(UsageError, match=r"row \d is not a dict with an image"):
            engine.train(bad, output="runs")
    with pytest.raises(UsageError, match="'suffix' have different types"):
        engine.train([rows[0], rows[1] | {"suffix": 3}], output="runs")
    with pytest.raises(UsageError, match="eval= takes one source"):
        engine.train(rows, output="runs", eval=["a", "b"])
    with pytest.raises(UsageError, match="no option learning_rte"):
        engine.train(rows, output="runs", learning_rte=1)
    assert not Path("runs").exists()


def test_manifest_trains_a_classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, count=6)
    Path("images/05.png").write_bytes(b"not an image")
    report = pgcli.train(
        "pairs.jsonl", output="out", task="classify", init="tiny", steps=2, **OPTIONS
    )
    assert report.unreadable == ("images/05.png",)
    answer = next(report.load(device="cpu").classify(["images/00.png"]))
    assert answer.answer in ("red", "green", "blue")
    assert json.loads(Path("out/run.json").read_text())["result"]["complete"]
