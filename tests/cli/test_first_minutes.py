"""What a newcomer types first works, or is answered by a line that works when it is pasted."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest

from pgcli.cli.find_model import default_model
from pgcli.cli.main import main
from tests.support.runs import EXAMPLES


@pytest.fixture(autouse=True)
def folder(pretended: None) -> None:
    """The current folder, with an image."""
    shutil.copy(EXAMPLES / "one.png", "one.png")


def test_hint_about_a_question_works_when_it_is_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "what is it?"]) == 2
    hint = capsys.readouterr().err.split("hint: a question? pgcli ")[1]
    assert main([*shlex.split(hint), "--model", "demo"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "what is it?"


def test_option_of_another_command_is_answered_by_that_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in ("--prompt=what?", "--object=cat"):
        assert main(["caption", "one.png", *option.split("="), "--model", "demo"]) == 2
        hint = capsys.readouterr().err.split("pgcli ", 1)[1].split("pgcli ", 1)[-1]
        assert main(shlex.split(hint)) == 0
        assert json.loads(capsys.readouterr().out)["error"] is None


def test_bench_and_info_take_the_model_of_the_variable_if_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGCLI_MODEL", "demo-towers")
    assert default_model() == "demo-towers"
    assert default_model("caption") == "demo"
    monkeypatch.setenv("PGCLI_MODEL", "google/paligemma-3b-mix-224")
    assert default_model("caption") == "google/paligemma-3b-mix-224"


def test_help_of_embed_lists_what_embeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--dtype-out" in shown
    assert not any(f"--{name} " in shown for name in ("adapter", "quantize", "draw", "sidecar"))
