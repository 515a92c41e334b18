"""`pgcli explain` on the command line: its page, and what it refuses."""

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.cli.main import main

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
IMAGE = Path(__file__).parents[2] / "examples" / "images" / "dusk.jpg"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page_values(page: Path) -> dict[str, Any]:
    """The JSON that the page's script reads."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def attention(text: str, rows: int) -> np.ndarray:
    """The weights of each layer and head, in parts of 65535."""
    return np.frombuffer(b64decode(text), "<u2").reshape(rows, -1).astype(np.int64)


def test_the_page_has_the_answer_of_ask(folder, capsys):
    prompt = ["--prompt", "what colour is the triangle?"]
    assert main(["explain", "demo", str(IMAGE), *prompt, "-o", "page.html", "-q"]) == 0
    assert main(["ask", str(IMAGE), *prompt, "--model", "demo", "-q"]) == 0
    row = json.loads(capsys.readouterr().out)
    values = page_values(folder / "page.html")
    assert values["answer"] == row["answer"] == "purple"
    assert values["prompt"] == row["prompt"]
    assert (values["width"], values["height"]) == (row["width"], row["height"])
    assert len(values["tokens"]) == row["tokens"]
    assert values["layers"] == [1, 2, 3, 4]
    for token in values["tokens"]:
        for weights in attention(token["attention"], 4 * values["heads"]):
            assert weights.sum() == pytest.approx(2**16 - 1, abs=len(weights))
    of_vision = attention(
        values["visionAttention"], len(values["visionLayers"]) * values["visionHeads"]
    )
    assert of_vision.shape[1] == values["grid"] ** 2


def test_the_page_makes_no_requests_and_has_no_foreign_markup(folder):
    hostile = folder / "<img src=x onerror=alert(1)>.png"
    Image.open(IMAGE).save(hostile)
    prompt = "</script><script>alert(1)</script> https://example.com"
    assert main(["explain", "demo", hostile.name, "--prompt", prompt, "-q"]) == 0
    text = (folder / "explanation.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert text.count("<script") == 2
    assert "<img src=x" not in text
    assert not re.findall(r"(?:src|href)=.https?:", text)


def test_layers_are_those_that_are_named(folder):
    assert main(["explain", "demo", str(IMAGE), "--layers", "4,2", "-q"]) == 0
    values = page_values(folder / "explanation.html")
    assert (values["layers"], values["depth"]) == ([2, 4], 4)
    slots = values["grid"] ** 2 + len(values["promptTokens"])
    assert attention(values["tokens"][0]["attention"], 2 * values["heads"]).shape[1] == slots


@pytest.fixture
def tab() -> Iterator[Any]:

    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


@pytest.mark.slow
def test_pointing_at_a_token_shows_where_it_looked(folder, tab):
    assert main(["explain", "demo", str(IMAGE), "-q"]) == 0
    problems: list[str] = []
    requests: list[str] = []
    tab.on("pageerror", lambda problem: problems.append(str(problem)))
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto((folder / "explanation.html").as_uri())
    tokens = tab.locator("#answer button")
    values = page_values(folder / "explanation.html")
    assert tokens.count() == len(values["tokens"])

    def heat() -> str:
        return str(tab.evaluate("document.getElementById('heat').toDataURL()"))

    names = tab.locator("#candidates td:first-child")
    candidates = [text for text, _ in values["tokens"][0]["candidates"]]
    assert {" a", "a"} < set(candidates)  # two tokens, which must not look alike
    assert names.all_text_contents() == [text.replace(" ", "␣", 1) for text in candidates]
    assert "earlier tokens 0 %" in tab.locator("#shares").text_content()
    tokens.nth(1).hover()
    assert tab.locator("#chosen").text_content() == "green"
    first = heat()
    tokens.nth(5).hover()
    assert tab.locator("#chosen").text_content() == "blue"
    assert heat() != first
    tab.keyboard.press("ArrowLeft")
    assert tab.locator("#number").text_content() == f"5 of {len(values['tokens'])}"
    for name in ("4", "head 2", "Vision tower", "head 1"):
        before = heat()
        tab.get_by_role("button", name=name, exact=True).click()
        assert heat() != before
    assert not tab.locator("#attended").is_visible()
    tab.get_by_role("button", name="Decoder", exact=True).click()
    assert tab.locator("#attended").is_visible()
    tab.locator("#frame").hover(position={"x": 40, "y": 40})
    assert tab.locator("#patch").is_visible()
    assert problems == []
    assert requests == [(folder / "explanation.html").as_uri()]


@pytest.mark.slow
def test_the_coordinate_of_a_location_token_is_drawn(folder, tab):
    assert main(["explain", "demo", str(IMAGE), "--prompt", "detect star", "-q"]) == 0
    tab.goto((folder / "explanation.html").as_uri())
    values = page_values(folder / "explanation.html")
    texts = [token["text"] for token in values["tokens"][:5]]
    frame, line = tab.locator("#frame").bounding_box(), tab.locator("#line")
    for number, side in enumerate(("y", "x", "y", "x")):  # ymin, xmin, ymax, xmax
        tab.locator("#answer button").nth(number).hover()
        box, share = line.bounding_box(), int(texts[number][4:8]) / 1023
        length = frame["height" if side == "y" else "width"]
        assert box[side] - frame[side] == pytest.approx(share * length, abs=2)
    tab.locator("#answer button").nth(4).hover()
    assert not line.is_visible()
