"""`pgcli --man` is the help of all commands, and `paligemma-cli` names itself."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.text import Text

from pgcli.cli.main import app, main

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def page(capsys):
    assert main(["--man"]) == 0
    return capsys.readouterr().out


def plain(page):
    """The page as a reader sees it, in one line."""
    text = re.sub(r"(?m)^\.(TH|SH|SS|TP|PP|nf|fi|br|B)\b ?", "", page)
    text = re.sub(r"\\f[BIR]", "", text).replace(r"\-", "-").replace(r"\&", "")
    return " ".join(text.replace(r"\e", "\\").split())


def words(help_text):
    return " ".join(Text.from_markup(help_text).plain.split())


def commands():
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="pgcli")
    for name, command in group.commands.items():
        yield name, command, typer.Context(command, info_name=name, parent=context)


def test_page_is_equal_to_the_help_of_every_command(page):
    text = plain(page)
    group = typer.main.get_command(app)
    assert words(group.help) in text
    assert words(group.epilog) in text
    for name, command, context in commands():
        assert f"pgcli {name}" in text
        assert words(command.help) in text
        for param in command.get_params(context):
            if param.param_type_name == "option" and param.name != "help":
                value = param.display_type_rich(context) or ""
                entry = f"{', '.join(param.opts)} {value}".strip()
                assert f"{entry} {words(param.help)}" in text, (name, param.name)
                assert param.envvar is None or f"[variable: {param.envvar}]" in text


def test_shared_options_are_described_once(page):
    assert plain(page).count("[variable: PGCLI_BATCH_SIZE]") == 1


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_page_has_no_warnings_of_groff(page):
    run = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tutf8"],
        input=page,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stderr == ""


def test_other_name_of_the_program_is_in_its_help_and_hints(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/paligemma-cli"])
    for line in (["--help"], ["caption", "--help"]):
        assert main(line) == 0
        shown = capsys.readouterr().out
        assert "Usage: paligemma-cli" in shown
        assert "$ paligemma-cli caption photo.jpg" in shown
        assert "$ pgcli" not in shown
    assert main(["caption"]) == 2
    assert "see paligemma-cli caption --help" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["pgcli"])
    assert main(["caption", "--help"]) == 0
    assert "$ pgcli caption photo.jpg" in capsys.readouterr().out
