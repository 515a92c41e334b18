"""examples/lessons: each runs, prints what its page shows, and notices wrong formulas."""

import importlib
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = EXAMPLES.parent / "docs"
SCRIPT = runpy.run_path(str(DOCS / "lessons.py"))
PAGES: dict[str, str] = dict(SCRIPT["lessons"]())
LESSONS = sorted(path.stem for path in (EXAMPLES / "lessons").glob("[a-z]*.py"))
WITH_FIGURES = sorted({*LESSONS} - {"paligemma"})
#: Lessons that train for seconds.
SLOW = ["vit"]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(autouse=True)
def same_settings() -> Iterator[None]:
    """Lessons set the seed and the number of threads of their process, which tests share."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def lesson(name: str) -> Any:
    torch.manual_seed(0)
    return importlib.import_module(f"examples.lessons.{name}")


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def marked(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


def test_every_lesson_has_a_page():
    assert sorted(PAGES) == LESSONS


@pytest.mark.parametrize("name", LESSONS)
def test_a_page_has_300_to_600_words_of_prose_and_names_files_that_exist(name):
    page = PAGES[name]
    prose = re.sub(r"^(```.*?^```|\|[^\n]*)$", "", page, flags=re.M | re.S)
    assert 300 <= len(prose.split()) <= 600
    headings = re.findall(r"^## (.*)$", page, re.M)
    assert headings == ["The idea", "The formula", "A common mistake", "In pgcli"]
    files = re.findall(r"`((?:pgcli|examples|docs|tests)/[\w/.]+)`", page)
    assert [file for file in files if not (DOCS.parent / file).exists()] == []
    names = re.findall(r"`(\w+)` (?:in|of) `(pgcli/[\w/.]+)`", page)
    assert [n for n, file in names if n not in (DOCS.parent / file).read_text("utf-8")] == []


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_a_lesson_has_at_most_180_lines(name):
    assert len((EXAMPLES / f"lessons/{name}.py").read_text("utf-8").splitlines()) <= 180


@pytest.mark.parametrize("name", marked(LESSONS))
def test_a_lesson_prints_what_its_page_shows(name, capsys, monkeypatch):
    """The words are equal; numbers differ by what another processor's rounding may change."""
    monkeypatch.setattr(sys, "argv", [name])
    with suppress(SystemExit):  # of a program with options
        runpy.run_path(str(EXAMPLES / f"lessons/{name}.py"), run_name="__main__")
    printed, (_, _, shown) = capsys.readouterr().out, *SCRIPT["BLOCK"].findall(PAGES[name])
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    assert numbers(printed) == pytest.approx(numbers(shown), rel=0.1, abs=0.02)


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_a_page_shows_its_figure_with_an_alternative_text(name):
    ((text, path),) = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", PAGES[name])
    assert path == f"../../images/lessons/{name}.png"
    assert len(text) > 40
    assert (DOCS / "images" / "lessons" / f"{name}.png").stat().st_size < 60_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kv_cache", "paligemma", "rope"])
def test_a_notebook_runs_from_top_to_bottom(name):
    pytest.importorskip("jupytext", reason="a development dependency")
    nbclient = pytest.importorskip("nbclient", reason="a development dependency")
    notebook = SCRIPT["notebook"](name, PAGES[name])
    assert notebook.cells[0].source.startswith("# ")
    assert len(notebook.cells) > 4
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells[1:] for output in cell.get("outputs", ())]
    ((_, _, shown),) = SCRIPT["BLOCK"].findall(PAGES[name])
    assert "".join(output.get("text", "") for output in outputs) == shown
    images = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == (name != "paligemma")


def causal(is_real_BS: Tensor, prefix: int) -> Tensor:
    slot = torch.arange(is_real_BS.shape[1])
    return (slot <= slot[:, None]) & is_real_BS[:, None]


#: A lesson, a name in it, and something wrong in its place, as tutorials have it.
MISTAKES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "scores are not scaled": ("attention", "attend", lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
    "the loss is a mean over all cells": (
        "contrastive",
        "siglip_loss",
        lambda logit_NN: F.softplus(logit_NN * (1 - 2 * torch.eye(len(logit_NN)))).mean(),
    ),
    "statistics come from the batch": (
        "normalisation",
        "layer_norm",
        lambda x_BD: (x_BD - x_BD.mean(0)) / x_BD.std(0),
    ),
    "the prefix is causal": ("kv_cache", "prefix_mask", causal),
    "positions are not used": ("rope", "rotate_halves", lambda x_SH, position_S: x_SH),
    "x comes before y": (
        "prompt",
        "boxes",
        lambda text, width, height: [
            (label, *(int(value) / 1023 * width for value in values))
            for *values, label in re.findall(r"<loc(\d{4})>" * 4 + r" ([^;]+?)(?: ;|$)", text)
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_lesson_notices_a_mistake(mistake, monkeypatch):
    name, attribute, wrong = MISTAKES[mistake]
    module = lesson(name)
    monkeypatch.setattr(module, attribute, wrong)
    if name == "normalisation":
        norms = module.NORMS | {"LayerNorm": (wrong, module.NORMS["LayerNorm"][1])}
        monkeypatch.setattr(module, "NORMS", norms)
    with pytest.raises(AssertionError):
        module.show_neighbours() if name == "normalisation" else module.main()


def test_every_attention_has_the_same_number_of_weights():
    module = lesson("attention")
    for way in module.three_ways().values():
        assert sum(x.numel() for x in way.parameters()) == 4 * (module.WIDTH + 1) * module.WIDTH


def test_each_claim_is_shown_by_a_lesson_or_test():
    page = (Path(__file__).parent / "claims.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| T(\d+) \| .+ \| (.+) \|$", page, re.M)
    assert [int(key) for key, _ in rows] == list(range(1, 79))
    for key, shown in rows:
        assert "test_" in shown or "lesson `" in shown or key == "77", key
        assert {Path(name).stem for name in re.findall(r"lesson `(\w+)\.py`", shown)} <= {*LESSONS}
