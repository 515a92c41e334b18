"""The hooks of a run's options, and errors before a run."""

from dataclasses import dataclass

import pytest

from pgcli.errors import OutputExists, UsageError
from pgcli.records import Item
from pgcli.results.hooks import Drawings, Sidecars, check_hooks, make_hooks
from pgcli.tasks import caption, detect, embed

ITEM = Item(0, "a.png", "a.png", path="a.png")


@dataclass(frozen=True)
class Options:
    output: str = "-"
    format: str = "auto"
    overwrite: bool = False
    draw: str | None = None
    sidecar: str | None = None


def test_hooks_follow_from_the_options(tmp_path):
    assert make_hooks(Options(), caption()) == []
    assert make_hooks(Options(), embed()) == []
    options = Options(draw=str(tmp_path / "drawn"), sidecar=".txt")
    hooks = make_hooks(options, detect(["star"]))
    assert [type(hook) for hook in hooks] == [Sidecars, Drawings]
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
    ],
)
def test_kept_texts_are_skipped_where_they_are_the_only_output(tmp_path, options, is_skipped):
    (tmp_path / "a.txt").write_text("kept")
    values = vars(options) | {"sidecar": ".txt"}
    hook, *_ = make_hooks(Options(**values), caption())
    assert hook.skips(Item(0, "a", "a", path=str(tmp_path / "a.png"))) == is_skipped


@pytest.mark.parametrize("ending", ["txt", ".png", ".JPG", ".jsonl", ".tar", "/x.txt", ".", ""])
def test_invalid_sidecar_ending_is_an_error(ending):
    with pytest.raises(UsageError, match="must be the extension of a text file"):
        check_hooks(Options(sidecar=ending))
    check_hooks(Options(sidecar=".caption"))


def test_draw_folder_is_checked(tmp_path):
    with pytest.raises(UsageError, match="is inside"):
        check_hooks(Options(draw=f"{tmp_path}/drawn"), [str(tmp_path)])
    (tmp_path / "file").touch()
    with pytest.raises(OutputExists, match="is not empty"):
        check_hooks(Options(draw=str(tmp_path)))
    check_hooks(Options(draw=str(tmp_path)), resumes=True)
