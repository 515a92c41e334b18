"""Boxes on the command line: thresholds, one prompt for each object, labels, text output."""

import json
import shutil
from pathlib import Path

import pytest

import pgcli
from pgcli.cli.main import main
from tests.support.runs import EXAMPLES

IMAGES = ("dusk.jpg", "one.png", "stars.jpg")
EACH = ("--object", "star", "--object", "triangle", "--each")


@pytest.fixture(autouse=True)
def photos():
    """A folder of three images."""
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


def test_drawing_has_the_boxes_that_the_row_has():
    detect("all.jsonl", "--object", "star", "--draw", "all")
    detect("none.jsonl", "--object", "star", "--min-confidence", "1", "--draw", "none")
    assert Path("none/one.png").read_bytes() != Path("all/one.png").read_bytes()
    for name, options in (("all", ()), ("none", ("--min-confidence", "1"))):
        words = ("view", "all.jsonl", "-o", "p.html", "--draw", f"{name}-redrawn", *options)
        assert main([*words, "--quiet"]) == 0
        for image in IMAGES:
            assert Path(f"{name}-redrawn", image).read_bytes() == Path(name, image).read_bytes()
    assert main(["view", "all.jsonl", "-o", "p.html", "--draw", "all"]) == 13
    assert main(["view", "all.jsonl", "-o", "p.html", "--draw", "photos", "--overwrite"]) == 2


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


@pytest.mark.parametrize("limit", [(), ("--strict", "--max-new-tokens", "13")])
def test_each_object_has_a_row_as_if_it_were_asked_alone(limit):
    rows = detect("each.jsonl", *EACH, *limit)
    keys = [(row["index"], row["prompt"]) for row in rows]
    assert keys == [(n, f"detect {name}") for n in range(3) for name in ("star", "triangle")]
    for name in ("star", "triangle"):
        alone = detect(f"{name}.jsonl", "--object", name, *limit)
        together = [row for row in rows if row["prompt"] == f"detect {name}"]
        assert [row["answer"] for row in together] == [row["answer"] for row in alone]
        assert not limit or {box["label"] for row in together for box in row["boxes"]} <= {name}


def test_each_encodes_an_image_once(capsys):
    words = ["detect", str(EXAMPLES), "--model", "demo", *EACH, "--verbose"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "12 of 24 prompts" in shown


def test_engine_takes_the_options_of_boxes():
    engine = pgcli.load("demo", device="cpu")
    image = EXAMPLES / "stars.jpg"
    everything = next(engine.detect(image, "star")).boxes
    limit = sorted(box.confidence for box in everything)[1]
    found = next(engine.detect(image, "star", min_confidence=limit)).boxes
    assert len(found) == len(everything) - 1
    rows = list(engine.detect(image, ["star", "circle"], each=True))
    assert [row.prompt for row in rows] == ["detect star", "detect circle"]


def test_view_export_and_read_accept_boxes_without_confidence():
    """As those of other programs are."""
    rows = detect("rows.jsonl")
    for box in (box for row in rows for box in row["boxes"]):
        del box["confidence"]
    written("rows.jsonl", *rows)
    assert main(["view", "rows.jsonl", "-o", "page.html"]) == 0
    for format in ("coco", "csv", "fiftyone", "imagefolder", "labelstudio", "yolo"):
        assert main(["export", "rows.jsonl", "--to", format, "-o", f"made-{format}"]) == 0
    boxes = [box for answer in pgcli.read("rows.jsonl") for box in answer.boxes]
    assert {box.confidence for box in boxes} == {None}
