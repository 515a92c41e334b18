"""Boxes on photographs that EXIF turns: the size of a row says which pixels they are of."""

from typing import Any

import pytest
from PIL import Image

from pgcli.inputs import ReadOptions
from pgcli.labels.columns import LabelColumns
from pgcli.training.rows import RowStore, TrainingRows
from pgcli.training.sources import RowReader
from tests.support.awkward import (
    BOTTOM,
    FLIPPED,
    LEFT,
    RIGHT,
    STORED,
    TOP,
    TURNED,
    UPRIGHT,
    photograph,
)
from tests.support.evaluating import write

DRAWN = {"label": "cat", "xmin": LEFT, "ymin": TOP, "xmax": RIGHT, "ymax": BOTTOM}


def row(image: str, size: tuple[int, int] | None = STORED, **box: float) -> dict[str, Any]:
    sides = {} if size is None else dict(zip(("width", "height"), size, strict=True))
    return {"image": image, "prefix": "detect cat", "boxes": [DRAWN | box], **sides}


def tokens(corners: tuple[float, ...], size: tuple[int, int]) -> str:
    (left, top, right, bottom), (width, height) = corners, size
    sides = ((top, height), (left, width), (bottom, height), (right, width))
    return "".join(f"<loc{round(side / most * 1023):04}>" for side, most in sides) + " cat"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads rows, and has what was said."""
    monkeypatch.chdir(tmp_path)
    photograph("a.png", 6)
    store = RowStore(tmp_path)

    def rows_of(*rows: dict[str, Any]) -> tuple[TrainingRows, str]:
        said: list[Any] = []
        reader = RowReader(LabelColumns(), on_event=said.append)
        found = reader.read([write("rows.jsonl", rows)], ReadOptions(), TrainingRows(store))
        return found, " ".join(event.text for event in said)

    yield rows_of
    store.close()


@pytest.mark.parametrize("orientation", FLIPPED)
def test_boxes_of_flipped_photographs_are_upright(read, orientation):
    photograph("flipped.png", orientation)
    photograph("b.png", 6)
    found, _ = read(row("flipped.png"), row("b.png", None), row("a.png"))
    assert [each.target for each in found] == [
        tokens((LEFT, TOP, RIGHT, BOTTOM), STORED),
        tokens((LEFT, TOP, RIGHT, BOTTOM), UPRIGHT),
        tokens(TURNED[6], UPRIGHT),
    ]


@pytest.mark.parametrize("side", [str, "{}.0".format])
def test_sizes_of_tables_are_texts(read, side):
    sized = row("a.png") | {"width": side(STORED[0]), "height": side(STORED[1])}
    assert read(sized)[0][0].target == tokens(TURNED[6], UPRIGHT)


def test_box_outside_of_its_rotated_image_skips_only_its_row(read):
    Image.new("RGB", STORED).save("plain.png")
    low = row("a.png", ymax=60.0)  # which is in the upright image
    found, _ = read(row("a.png", xmax=90.0), row("plain.png"), row("a.png"), low)
    assert [each.item.id for each in found] == ["plain.png", "a.png"]
    assert found[1].target == tokens(TURNED[6], UPRIGHT)
    assert len(found.faults) == 2
    assert "a.png: The box 'cat' is outside of its image" in found.faults[0]
    assert "a.png: The box 'cat' is outside of its image" in found.faults[1]
