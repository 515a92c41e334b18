"""The hooks that options and question have, and what is refused before a run."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.records import Item
from pgcli.results.drawings.drawings import Drawings
from pgcli.results.hooks import Page, check_hooks, make_hooks
from pgcli.results.sidecars import Sidecars
from pgcli.tasks import caption, detect, embed
from tests.support.answers import answer

ITEM = Item(0, "a.png", "a.png", path="a.png")


@dataclass(frozen=True)
class Options:
    output: str = "-"
    format: str = "auto"
    overwrite: bool = False
    draw: str | None = None
    view: str | None = None
    sidecar: str | None = None
    prepend: str | None = None
    append: str | None = None


def test_hooks_follow_from_the_options(tmp_path):
    assert make_hooks(Options(), caption()) == []
    assert make_hooks(Options(), embed()) == []
    options = Options(draw=str(tmp_path / "drawn"), view=str(tmp_path / "a.html"), sidecar=".txt")
    hooks = make_hooks(options, detect(["star"]), write_page=print)
    assert [type(hook) for hook in hooks] == [Sidecars, Drawings, Page]
    for hook in hooks:
        hook.finish(complete=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "is_skipped"),
    [
        (Options(), True),
        (Options(format="text"), True),
        (Options(format="jsonl"), False),
        (Options(output="rows.jsonl"), False),
        (Options(draw="drawn"), False),
        (Options(view="a.html"), False),
    ],
)
def test_kept_texts_are_skipped_where_they_are_the_only_output(tmp_path, options, is_skipped):
    (tmp_path / "a.txt").write_text("kept")
    values = vars(options) | {"sidecar": ".txt"}
    hook, *_ = make_hooks(Options(**values), caption(), write_page=print)
    assert hook.skips(Item(0, "a", "a", path=str(tmp_path / "a.png"))) == is_skipped


@pytest.mark.parametrize("ending", ["txt", ".png", ".JPG", ".jsonl", ".tar", "/x.txt", ".", ""])
def test_sidecar_that_is_not_an_ending_of_texts_is_refused(ending):
    with pytest.raises(UsageError, match="is not an ending of text files"):
        check_hooks(Options(sidecar=ending))
    check_hooks(Options(sidecar=".caption"))


def test_draw_folder_is_checked(tmp_path):
    with pytest.raises(UsageError, match="is inside"):
        check_hooks(Options(draw=f"{tmp_path}/drawn"), [str(tmp_path)])
    (tmp_path / "file").touch()
    with pytest.raises(OutputExists, match="is not empty"):
        check_hooks(Options(draw=str(tmp_path)))
    check_hooks(Options(draw=str(tmp_path)), resumes=True)


@pytest.mark.parametrize("page", ["-", "", "rows.jsonl", "./rows.jsonl", "."])
def test_page_that_cannot_be_written_is_refused(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        check_hooks(Options(output="rows.jsonl", view=page, overwrite=True))
    check_hooks(Options(output="rows.jsonl", view="a.html"))


class Pages:
    """Notes the pages that are written: their rows."""

    def __init__(self) -> None:
        self.pages: list[tuple[str, list[str]]] = []

    def __call__(self, rows: Path) -> None:
        lines = rows.read_text().splitlines() if rows.exists() else []
        self.pages.append((rows.name, [json.loads(line)["id"] for line in lines]))


@pytest.mark.parametrize("complete", [True, False])
def test_rows_of_standard_output_are_kept_for_the_page(tmp_path, monkeypatch, complete):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write = Pages()
    (page,) = make_hooks(Options(view="a.html"), caption(), write_page=write)
    for index in range(3):
        page.on_row(answer(index), ITEM, is_saved=False)
    assert page.finish(complete=complete) == ()
    assert write.pages == [("answers.jsonl", ["0.png", "1.png", "2.png"])] * complete
    assert list(tmp_path.iterdir()) == []


def test_page_of_saved_rows_is_made_from_the_output(tmp_path):
    write = Pages()
    page = Page(tmp_path / "rows.jsonl", caption(), write)
    page.on_row(answer(), ITEM, is_saved=True)
    page.finish(complete=True)
    assert write.pages == [("rows.jsonl", [])]


def test_rows_that_cannot_be_kept_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    page = Page(None, caption(), print)
    with pytest.raises(OutputFailed, match="cannot keep rows"):
        page.on_row(answer(), ITEM, is_saved=False)
    page.finish(complete=False)
