"""What a newcomer types first works, or is answered by a line that works when it is pasted."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgcli.cli.find_model import default_model
from pgcli.cli.main import main
from pgcli.run import model as running
from tests.support import pretend
from tests.support.runs import EXAMPLES, ROOT

pytestmark = pytest.mark.usefixtures("clean_environment")
PRETEND = [sys.executable, str(ROOT / "tests" / "support" / "pretend.py")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with an image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    shutil.copy(EXAMPLES / "one.png", "one.png")


def piped(words: str, data: bytes) -> list[dict[str, object]]:
    """The rows of a command that reads the data from a pipe."""
    command = [*PRETEND, *shlex.split(words), "--model", "demo"]
    run = subprocess.run(command, input=data, capture_output=True, timeout=100, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("source", ["", "- "])
@pytest.mark.parametrize("data", [b"one.png\n", None], ids=["names", "bytes"])
def test_pipe_is_read(source: str, data: bytes | None) -> None:
    (row,) = piped(f"ask {source}--prompt what?", data or Path("one.png").read_bytes())
    assert (row["prompt"], row["error"], row["width"]) == ("what?", None, 623)


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


@pytest.mark.parametrize(
    "output", ["r/s/x.parquet", "r/s/x.jsonl", "r/s/parts/", "r/s/x.txt --format text"]
)
def test_folders_above_an_output_are_made(output: str) -> None:
    command = f"caption one.png --model demo -o {output}"
    assert main([*command.split(), "--dry-run"]) == 0
    assert not Path("r").exists()
    assert main(command.split()) == 0
    assert Path(output.split()[0]).exists()


def test_folders_above_a_page_and_an_export_are_made() -> None:
    assert main("caption one.png --model demo -o rows.jsonl".split()) == 0
    for command in ("view rows.jsonl -o a/b.html", "export rows.jsonl --to imagefolder -o c/d"):
        assert main(command.split()) == 0
    assert Path("a/b.html").exists()
    assert Path("c/d").is_dir()


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("demo-towers", "caption one.png"),
        ("demo", "score one.png --text a"),
        ("demo", "classify one.png --label a --label b"),
        ("demo", "embed --text a"),
    ],
)
def test_variable_names_a_model_for_the_commands_that_can_use_it(
    model: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*line.split(), "--model", model, "--dry-run"]) == 2
    assert "cannot" in capsys.readouterr().err
    monkeypatch.setenv("PGCLI_MODEL", model)
    assert main([*line.split(), "--dry-run"]) == 0
    assert "the built-in one" in capsys.readouterr().err


def test_bench_and_info_take_the_model_of_the_variable_if_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGCLI_MODEL", "demo-towers")
    assert default_model() == "demo-towers"
    assert default_model("caption") == "demo"
    monkeypatch.setenv("PGCLI_MODEL", "google/paligemma-3b-mix-224")
    assert default_model("caption") == "google/paligemma-3b-mix-224"


def test_rows_of_a_pipe_are_viewed() -> None:
    command = [*PRETEND, "caption", "one.png", "-q"]
    rows = subprocess.run(command, capture_output=True, check=True, timeout=100)
    subprocess.run([*PRETEND, "view", "-"], input=rows.stdout, check=True, timeout=100)
    page = Path("rows.html").read_text()
    assert "an image of 623 x 544" in page
    assert "data:image/" in page


def test_help_of_embed_lists_what_embeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--dtype-out" in shown
    assert not any(f"--{name} " in shown for name in ("adapter", "quantize", "draw", "sidecar"))


def test_text_shows_which_of_several_prompts_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = "ask one.png --model demo --format text --prompt a --prompt b"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["one.png, a", "one.png, b"]
