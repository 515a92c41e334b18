"""Boxes on photographs that EXIF turns: the rows of a source show which pixels they are of."""

from typing import Any

import pytest
from PIL import Image

from pgcli.errors import UsageError
from pgcli.inputs import ReadOptions
from pgcli.labelled_rows import ExampleColumns
from pgcli.training.rows import RowStore, TrainingRows
from pgcli.training.sources import RowReader
from tests.support.evaluating import write
from tests.support.turned_images import (
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
        reader = RowReader(ExampleColumns(), on_event=said.append)
        found = reader.read([write("rows.jsonl", rows)], ReadOptions(), TrainingRows(store))
        return found, " ".join(event.text for event in said)

    yield rows_of
    store.close()


@pytest.mark.parametrize("orientation", FLIPPED)
def test_flipped_photographs_follow_the_rest_of_their_source(read, orientation):
    photograph("flipped.png", orientation)
    turned = tokens(TURNED[6], UPRIGHT)
    found, said = read(row("flipped.png"), row("a.png"))
    assert [each.target for each in found] == [tokens(FLIPPED[orientation], STORED), turned]
    assert "2 images annotated as stored" in said
    upright = dict(zip(("xmin", "ymin", "xmax", "ymax"), TURNED[6], strict=True))
    found, said = read(row("flipped.png"), row("a.png", UPRIGHT, **upright))
    assert [each.target for each in found] == [tokens((LEFT, TOP, RIGHT, BOTTOM), STORED), turned]
    assert said == ""


@pytest.mark.parametrize("side", [str, "{}.0".format])
def test_sizes_of_tables_are_texts(read, side):
    sized = row("a.png") | {"width": side(STORED[0]), "height": side(STORED[1])}
    assert read(sized)[0][0].target == tokens(TURNED[6], UPRIGHT)


def test_rows_without_a_size_follow_the_rest_of_their_source(read):
    photograph("b.png", 6)
    found, said = read(row("a.png"), row("b.png", None))
    assert [each.target for each in found] == [tokens(TURNED[6], UPRIGHT)] * 2
    assert "2 images annotated as stored" in said


def test_boxes_that_fit_only_the_upright_image_are_not_turned(read):
    photograph("b.png", 6)
    found, said = read(row("a.png", ymax=60.0), row("b.png"))
    assert [each.target for each in found] == [
        tokens((LEFT, TOP, RIGHT, 60.0), UPRIGHT),
        tokens((LEFT, TOP, RIGHT, BOTTOM), UPRIGHT),
    ]
    assert "2 images with swapped sides in the file" in said
    photograph("c.png", 6)
    with pytest.raises(UsageError, match="the stored size is stated for"):
        read(row("a.png", ymax=60.0), row("c.png", xmax=60.0))


def test_box_outside_of_its_rotated_image_skips_only_its_row(read):
    Image.new("RGB", STORED).save("plain.png")
    found, _ = read(row("a.png", xmax=90.0), row("plain.png"), row("a.png"))
    assert [each.item.id for each in found] == ["plain.png", "a.png"]
    assert found[1].target == tokens(TURNED[6], UPRIGHT)
    assert len(found.faults) == 1
    assert "a.png: The box 'cat' is outside of its image" in found.faults[0]
