"""`pgcli.train`: the report, resume, and the trained weights."""

import json
from pathlib import Path
from typing import Any

import pytest

import pgcli
from pgcli.errors import UsageError
from tests.support.training import draw, write_pairs

pytestmark = pytest.mark.usefixtures("clean_environment")
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "workers": 0, "batch_size": 2}


@pytest.fixture
def rows(tmp_path, monkeypatch) -> Path:
    """A manifest of drawings, beside one of another drawing."""
    monkeypatch.chdir(tmp_path)
    lines = []
    for number in range(4):
        draw(Path(f"{number}.png"), number)
        row = {"image": f"{number}.png", "prefix": "caption en", "suffix": "a wall"}
        lines.append(json.dumps(row) + "\n")
    Path("held.jsonl").write_text(lines[0])
    Path("rows.jsonl").write_text("".join(lines[1:]))
    return Path("rows.jsonl")


def test_trained_adapter_is_reported_resumed_and_loaded(rows):
    settings = OPTIONS | {"model": "demo", "steps": 3, "learning_rate": 0.01}
    settings["eval"] = "held.jsonl"
    report = pgcli.train(rows, output="runs", **settings)
    lines = report.metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert report.steps == 3
    assert lines[-1]["eval_loss"] < lines[0]["eval_loss"]
    assert report.best["step"] in (1, 2, 3)
    assert report.unreadable == ()
    engines = (pgcli.load("demo", device="cpu"), report.load(device="cpu"))
    before, after = (next(one.caption(["0.png"])).logprob for one in engines)
    assert before != after
    weights = Path("runs/adapter_model.safetensors").read_bytes()
    assert pgcli.train(rows, output="runs", **settings).steps == 3  # is complete
    assert Path("runs/adapter_model.safetensors").read_bytes() == weights


def test_values_that_are_not_sources_are_rejected(rows):
    with pytest.raises(UsageError, match="train takes the paths"):
        pgcli.train([{"image": "0.png"}], output="runs")  # type: ignore[list-item]
    with pytest.raises(UsageError, match="no option learning_rte"):
        pgcli.train(rows, output="runs", learning_rte=1)
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
