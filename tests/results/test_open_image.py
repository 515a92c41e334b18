"""Tests the open image of a page in a browser: enlarging, moving, and labels that stay inside."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.pages import PHONE, OpenPage, box, gallery, row

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


def page_of(folder: Path, width: int, height: int, *boxes: dict[str, Any]) -> Path:
    """A page of one image with these boxes."""
    Image.new("RGB", (width, height), "navy").save(folder / "00000.png")
    answered = row(0, answer="", task="detect", boxes=[*boxes], width=width, height=height)
    return gallery(folder, [answered])


def scale(shown: OpenPage) -> float:
    """The enlargement of the open image."""
    return shown.all(".pane").evaluate("p => p.clientWidth / p.parentElement.clientWidth")


def screen_point(shown: OpenPage, x: float, y: float) -> tuple[float, float]:
    """The point of the screen that shows a point of the image."""
    point = shown.all("#stage svg.marks").evaluate(
        "(s, [x, y]) => { const p = new DOMPoint(x, y).matrixTransform(s.getScreenCTM());"
        " return [p.x, p.y]; }",
        [x, y],
    )
    return point[0], point[1]


def test_image_is_enlarged_by_keys_wheel_and_double_click(open_page, tmp_path):
    shown = open_page(page_of(tmp_path, 400, 200, box("cat", 100, 50, 200, 150)))
    shown.press("j", "z")
    assert scale(shown) == 1
    shown.press("+", "+")
    assert scale(shown) == 4
    shown.press("-")
    assert scale(shown) == 2
    shown.press("0")
    assert scale(shown) == 1
    point = screen_point(shown, 150, 75)
    shown.page.mouse.move(*point)
    shown.page.mouse.wheel(0, -400)
    shown.page.wait_for_timeout(100)
    assert scale(shown) == pytest.approx(np.e, rel=0.01)
    assert screen_point(shown, 150, 75) == pytest.approx(point, abs=1)  # it stays at the pointer
    shown.page.mouse.dblclick(*screen_point(shown, 230, 75))
    assert scale(shown) == 1
    shown.page.mouse.dblclick(*screen_point(shown, 230, 75))
    assert scale(shown) == 3
    assert shown.all("#smaller").is_enabled()
    shown.press("j", "Escape", "z")
    assert scale(shown) == 1  # the next image is shown as a whole


def test_double_click_on_a_box_enlarges_and_selects_nothing(open_page, tmp_path):
    """In a photo that a box fills, there is no other place for it."""
    shown = open_page(page_of(tmp_path, 400, 200, box("cat", 2, 2, 398, 198)))
    shown.press("j", "z")
    before = shown.all("#stage rect").first.get_attribute("x")
    shown.page.mouse.dblclick(*screen_point(shown, 150, 75))
    assert scale(shown) == 3
    assert shown.all(".handle").count() == 0
    point = screen_point(shown, 150, 75)
    shown.press("ArrowRight")
    assert screen_point(shown, 150, 75)[0] < point[0]  # the key moves the image
    assert shown.all("#stage rect").first.get_attribute("x") == before
    shown.page.mouse.dblclick(*screen_point(shown, 150, 75))
    assert scale(shown) == 1
    shown.page.mouse.click(*screen_point(shown, 150, 75))
    assert shown.all(".handle").count() == 4
    shown.page.wait_for_timeout(600)  # else the browser counts the clicks together
    shown.page.mouse.dblclick(*screen_point(shown, 150, 75))
    assert scale(shown) == 3
    assert shown.all(".handle").count() == 4  # the box stays selected


def test_enlarged_image_is_moved_by_pointer_and_arrows_within_the_stage(open_page, tmp_path):
    shown = open_page(page_of(tmp_path, 400, 200, box("cat", 10, 10, 20, 20)))
    shown.press("j", "z", "+", "+")
    stage = shown.all("#stage").bounding_box()
    middle = (stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2)
    before = screen_point(shown, 200, 100)
    shown.page.mouse.move(*middle)
    shown.page.mouse.down()
    shown.page.mouse.move(middle[0] + 60, middle[1] - 40, steps=4)
    shown.page.mouse.up()
    moved = screen_point(shown, 200, 100)
    assert (moved[0] - before[0], moved[1] - before[1]) == pytest.approx((60, -40), abs=1)
    shown.press("ArrowRight")
    assert screen_point(shown, 200, 100)[0] < moved[0]
    shown.press(*["ArrowLeft"] * 30)
    pane, figure = (shown.all(name).bounding_box() for name in (".pane", ".figure"))
    assert pane["x"] == pytest.approx(figure["x"], abs=1)


def test_two_fingers_enlarge(open_page, tmp_path):
    image = page_of(tmp_path, 400, 300, box("cat", 300, 200, 390, 290))
    shown = open_page(image, viewport=PHONE, has_touch=True)
    shown.press("j", "z")
    stage = shown.all("#stage").bounding_box()
    x, y = stage["x"] + 100, stage["y"] + 100
    touch = shown.context.new_cdp_session(shown.page)

    def fingers(kind: str, *points: tuple[float, float]) -> None:
        touches = [{"x": px, "y": py, "id": number} for number, (px, py) in enumerate(points)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    fingers("touchStart", (x, y), (x + 40, y))
    fingers("touchMove", (x - 20, y), (x + 60, y))
    fingers("touchMove", (x - 40, y), (x + 80, y))
    fingers("touchEnd")
    assert scale(shown) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("keys", [(), ("+",), ("+", "+", "ArrowLeft")])
def test_boxes_are_drawn_and_moved_at_any_enlargement(open_page, tmp_path, keys):
    shown = open_page(page_of(tmp_path, 400, 200, box("cat", 150, 80, 200, 120)))
    shown.press("j", "z", *keys)

    def drag(start: tuple[float, float], end: tuple[float, float]) -> None:
        points = [screen_point(shown, *start), screen_point(shown, *end)]
        shown.page.mouse.move(*points[0])
        shown.page.mouse.down()
        shown.page.mouse.move(*points[1], steps=3)
        shown.page.mouse.up()

    drag((170, 100), (180, 110))
    shown.press("Escape", "d")
    drag((190, 70), (215, 95))
    shown.press("Escape", "Escape")
    corners = shown.all("#stage g[data-box]").evaluate_all(
        "all => all.map(g => { const r = g.querySelector('rect'); return ['x', 'y', 'width',"
        " 'height'].map(name => +r.getAttribute(name)); }).sort((a, b) => a[0] - b[0])"
    )
    assert np.allclose(corners, [[160, 90, 50, 40], [190, 70, 25, 25]], atol=1.5)


LONG = "a very long label of a thing that no one would ever write but somebody did " * 4


@pytest.mark.parametrize(("width", "height"), [(60, 4000), (4000, 60), (640, 480)])
def test_labels_have_their_background_and_stay_inside_the_stage(open_page, tmp_path, width, height):
    boxes = [
        box("cat", 0, 0, width / 8, height / 8),
        box(LONG, width * 0.8, height / 2, width * 0.9, height * 0.6),
        box("dog", width * 0.9, height * 0.9, width, height),
    ]
    shown = open_page(page_of(tmp_path, width, height, *boxes))
    shown.press("j", "z")
    sides = (
        "e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }"
    )
    for area, tags in ((".figure", "#stage g"), (".frame", ".card g")):
        left, top, right, bottom = shown.all(area).first.evaluate(sides)
        texts = shown.all(f"{tags} text")
        assert texts.count() >= 2
        for text in texts.all():
            words, ground = (
                text.evaluate(sides),
                text.evaluate(f"t => ({sides})(t.previousSibling)"),
            )
            assert ground[0] <= words[0] + 0.5
            assert words[2] <= ground[2] + 0.5
            assert left - 1 <= ground[0]
            assert ground[2] <= right + 1
            assert top - 1 <= ground[1]
            assert ground[3] <= bottom + 1
