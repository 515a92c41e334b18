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


def test_engine_takes_the_options_of_boxes():
    engine = pgcli.load("demo", device="cpu")
    image = EXAMPLES / "stars.jpg"
    everything = next(engine.detect(image, "star")).boxes
    limit = sorted(box.confidence for box in everything)[1]
    found = next(engine.detect(image, "star", min_confidence=limit)).boxes
    assert len(found) == len(everything) - 1
    rows = list(engine.detect(image, ["star", "circle"], each=True))
    assert [row.prompt for row in rows] == ["detect star", "detect circle"]
