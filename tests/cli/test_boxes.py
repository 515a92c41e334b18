"""Boxes on the command line: thresholds, one prompt for each object, labels, text output."""

import json
import shutil
from pathlib import Path

import pytest

import pgcli
from pgcli.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
IMAGES = ("dusk.jpg", "one.png", "stars.jpg")
EACH = ("--object", "star", "--object", "triangle", "--each")

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The current folder, with a folder of three images."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for name in IMAGES:
        shutil.copy(EXAMPLES / name, f"photos/{name}")


def detect(output, *options, code=0):
    words = ["detect", "photos", "--model", "demo", "-o", output, "--quiet", "--no-timing"]
    assert main([*words, *(options or ("--object", "star"))]) == code
    return [json.loads(line) for line in Path(output).read_text().splitlines()]


def written(file, *rows):
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.usefixtures("photos")
def test_threshold_is_a_setting_of_the_run(capsys):
    detect("rows.jsonl", "--object", "star", "--limit", "1")
    detect("rows.jsonl", "--object", "star", "--min-confidence", "0.5", code=13)
    assert "min_confidence" in capsys.readouterr().err


@pytest.mark.usefixtures("photos")
def test_drawing_has_the_boxes_that_the_row_has():
    detect("all.jsonl", "--object", "star", "--draw", "all")
    detect("none.jsonl", "--object", "star", "--min-confidence", "1", "--draw", "none")
    plain, drawn = ((Path(name) / "one.png").read_bytes() for name in ("none", "all"))
    assert plain != drawn
    command = ["view", "all.jsonl", "-o", "p.html", "--draw", "redrawn", "--min-confidence", "1"]
    assert main([*command, "--quiet"]) == 0
    assert (Path("redrawn") / "one.png").read_bytes() == plain


@pytest.mark.usefixtures("photos")
def test_export_and_page_leave_out_boxes():
    rows = detect("rows.jsonl")
    boxes = [box for row in rows for box in row["boxes"]]
    limit = sorted(box["confidence"] for box in boxes)[2]
    twice = [row | {"boxes": row["boxes"] * 2} for row in rows]
    written("twice.jsonl", *twice)
    options = ["--min-confidence", str(limit), "--nms", "0.5"]
    assert main(["export", "twice.jsonl", "--to", "coco", "-o", "c.json", *options, "-q"]) == 0
    found = json.loads(Path("c.json").read_text())["annotations"]
    assert len(found) == len(boxes) - 2
    assert main(["view", "twice.jsonl", "-o", "p.html", *options, "-q"]) == 0
    data = Path("p.html").read_text().partition('id="data">')[2].partition("</script>")[0]
    assert sum(len(row.get("boxes", ())) for row in json.loads(data)["rows"]) == len(boxes) - 2


@pytest.mark.usefixtures("photos")
def test_each_object_has_a_row_as_if_it_were_asked_alone():
    rows = detect("each.jsonl", *EACH)
    keys = [(row["index"], row["prompt"]) for row in rows]
    assert keys == [(n, f"detect {name}") for n in range(3) for name in ("star", "triangle")]
    for name in ("star", "triangle"):
        alone = detect(f"{name}.jsonl", "--object", name)
        together = [row for row in rows if row["prompt"] == f"detect {name}"]
        answers = [(row["id"], row["answer"]) for row in together]
        assert answers == [(row["id"], row["answer"]) for row in alone]


@pytest.mark.usefixtures("photos")
def test_strict_answers_of_each_object_are_about_that_object():
    limit = ("--strict", "--max-new-tokens", "13")
    rows = detect("each.jsonl", *EACH, *limit)
    for row in rows:
        assert {box["label"] for box in row["boxes"]} <= {row["prompt"].removeprefix("detect ")}
    for name in ("star", "triangle"):
        alone = detect(f"{name}.jsonl", "--object", name, *limit)
        found = [row["answer"] for row in rows if row["prompt"].endswith(name)]
        assert found == [row["answer"] for row in alone]


def test_each_encodes_an_image_once(capsys):
    words = ["detect", str(EXAMPLES), "--model", "demo", *EACH, "--verbose"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "12 of 24 prompts" in shown


def test_export_joins_the_rows_of_each_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["detect", str(EXAMPLES / "dusk.jpg"), "--model", "demo", "-o", "r.jsonl", "-q", *EACH]
    assert main(words) == 0
    assert main(["export", "r.jsonl", "--to", "coco", "-o", "c.json", "-q"]) == 0
    found = json.loads(Path("c.json").read_text())
    assert len(found["images"]) == 1
    assert {one["name"] for one in found["categories"]} == {"star", "triangle"}


def test_engine_takes_the_options_of_boxes():
    engine = pgcli.load("demo", device="cpu")
    image = EXAMPLES / "stars.jpg"
    everything = next(engine.detect(image, "star")).boxes
    limit = sorted(box.confidence for box in everything)[1]
    found = next(engine.detect(image, "star", min_confidence=limit)).boxes
    assert len(found) == len(everything) - 1
    rows = list(engine.detect(image, ["star", "circle"], each=True))
    assert [row.prompt for row in rows] == ["detect star", "detect circle"]
