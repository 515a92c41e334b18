"""The help pages and the completion of shells."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from pgcli.cli.app import PANELS, typer_command
from pgcli.cli.main import app, command_group, main
from pgcli.cli.options import SHARED_PANELS
from pgcli.errors import PgcliError
from tests.support.runs import EXAMPLES, ROOT, finished
from tests.support.vectors import rows_of, unit, write_parquet

ANSWERING = ["caption", "ask", "detect", "segment", "ocr"]
MAKING_ROWS = [*ANSWERING, "embed", "score", "classify"]


COMMANDS = [name for summaries in PANELS.values() for name in summaries]
PAGES = [[], *([name] for name in COMMANDS)]


def help_page(command, columns=80):
    return CliRunner().invoke(app, [*command, "-h"], env={"COLUMNS": str(columns)}).output


def examples(command):
    """The examples of a help page: the lines before its options."""
    page = help_page(command)
    before, panel, _ = page.partition("╭")
    assert panel
    return [line.strip()[2:] for line in before.splitlines() if line.strip().startswith("$ ")]


@pytest.mark.parametrize("command", PAGES, ids=lambda words: "-".join(words) or "pgcli")
def test_help_texts_end_in_examples_that_run(command, tmp_path, monkeypatch, capsys):
    """With images, results and weights of the names in the examples."""
    for name in ("photos/one.png", "photos/two.png", "scans/one.png", "photo.jpg", "scan.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / "one.png", tmp_path / name)
    (tmp_path / "vae-oid.npz").touch()
    edits = {"format": "pgcli edits", "version": 1, "edits": []}
    (tmp_path / "captions.edits.json").write_text(json.dumps(edits))
    text = {"type": "textarea", "value": {"text": "a drawing"}}
    task = {"data": {"image": "one.png"}, "annotations": [{"result": [text]}]}
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    for name, task in (
        ("captions.jsonl", ["caption"]),
        ("again.jsonl", ["caption"]),
        ("boxes.jsonl", ["detect", "--object=a"]),
    ):
        assert finished(*task, "photos", "-o", name, cwd=tmp_path).returncode == 0
    (tmp_path / "truth.csv").write_text("id,caption\none.png,a drawing\n")
    write_parquet(tmp_path / "photos.parquet", rows_of(unit(9, 192), model=None))
    monkeypatch.chdir(tmp_path)
    for name, text in callable_in(tmp_path).items():
        monkeypatch.setenv(name, text)
    found = examples(command)
    assert found
    for example in found:
        if any(name in command for name in MAKING_ROWS) or "caption" in example.split()[1:2]:
            example += " --dry-run --overwrite"
        elif "google/" in example or command in (["bench"], ["verify"], ["train"]):  # slow commands
            example += " --help"
        if set(example) & set("|<>&;$"):
            code = subprocess.run(["bash", "-c", example], check=False, timeout=100).returncode
        else:
            code = main(shlex.split(example)[1:])
        assert code == 0, (example, capsys.readouterr().err)


@pytest.mark.parametrize("command", PAGES, ids=lambda words: "-".join(words) or "pgcli")
def test_every_option_has_help_that_fits_the_terminal(command):
    for columns in (80, 120):
        assert max(map(len, help_page(command, columns).splitlines())) <= columns
    params = (typer_command(command[0]) if command else command_group()).params
    assert [p.name for p in params if not getattr(p, "hidden", False) and not p.help] == []
    usage = next(line for line in help_page(command).splitlines() if "Usage:" in line)
    assert not set("{}") & set(usage)
    assert "[[" not in usage


def test_panels_of_the_help_have_one_order():
    shared = list(SHARED_PANELS)
    for name in COMMANDS:
        options = [param for param in typer_command(name).params if not param.hidden]
        panels = list(dict.fromkeys(option.rich_help_panel for option in options))
        own = [panel for panel in panels if panel not in shared]
        assert panels == own + [panel for panel in shared if panel in panels], name
        assert None not in panels, name


def test_the_exit_codes_are_in_the_help():
    page = " ".join(help_page([]).split())
    codes_text = page.partition("Exit codes: ")[2]
    codes = {problem.exit_code for problem in PgcliError.__subclasses__()} | {0, 3}
    for code in codes:
        assert re.search(rf"\b{code} [a-z]", codes_text), code


def test_no_command_shows_the_help(cli):
    assert cli() == cli("-h") == cli("--help")
    assert cli()[0] == 0


@pytest.mark.parametrize("command", ANSWERING)
def test_answering_commands_show_all_shared_options(command):
    wanted = """--model --revision --device --dtype --batch-size --max-new-tokens --temperature
    --seed --region --image-column --id-column --prompt-column --keep --limit --workers --max-pixels
    --fast-decode --allow-outside-root --output -o --format --overwrite --on-error --dry-run --quiet
    -q --verbose -v --debug --help -h"""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    words = set(shown.replace(",", " ").split())
    assert set(wanted.split()) <= words
    panels = ("What to ask", "Which model", "Which images", "Where to", "How to run")
    places = [shown.index(f" {panel} ") for panel in panels]
    assert places == sorted(places)
    assert "docs/reference.md" in shown
    assert sum(line.startswith("│ --") for line in shown.splitlines()) < 50


def test_reference_is_made_of_the_declarations():
    """By `python docs/reference.py > docs/reference.md`."""
    program = [sys.executable, str(ROOT / "docs" / "reference.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.check_output(program, env=environment, text=True, timeout=100)
    assert made == (ROOT / "docs" / "reference.md").read_text()
    for command in COMMANDS:
        for param in typer_command(command).params:
            for name in param.opts:
                assert f"`{name}`" in made or not name.startswith("-"), name


def test_help_shows_the_actual_defaults():
    from pgcli.images import ImageLimits
    from pgcli.images.pool import DEFAULT_WORKERS
    from pgcli.tasks import MAX_NEW_TOKENS

    shown = CliRunner().invoke(app, ["ocr", "--help"], env={"COLUMNS": "250"}).output
    assert f"[default: {ImageLimits().max_pixels:,}]" in shown
    assert f"[default: up to {DEFAULT_WORKERS}; for a GPU all cores but 2]" in shown
    assert f"[default: {MAX_NEW_TOKENS['ocr']}]" in shown
    assert "[default: demo]" in shown
    assert "[required]" in CliRunner().invoke(app, ["detect", "--help"]).output


@pytest.mark.parametrize(
    ("command", "option", "choices"),
    [
        ("caption", "--on-error", "[record|stop]"),
        ("caption", "--format", "[auto|jsonl|text]"),
        ("caption", "--device", "[auto|cpu|cuda|cuda:N|mps]"),
        ("caption", "--dtype", "[auto|bfloat16|float32]"),
        ("caption", "--quantize", "[none|int8|fp8]"),
        ("export", "--store-images", "[link|copy|none]"),
    ],
)
def test_help_shows_the_choices_of_an_option(command, option, choices):
    line = next(line for line in help_page([command], 120).splitlines() if f" {option} " in line)
    assert f" {choices} " in line


@pytest.fixture
def folder(tmp_path):
    """A folder with images, a cache with two models, and a program that is called pgcli."""
    for name, kind in (("me/mine", "paligemma"), ("me/other", "llama")):
        snapshot = tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    callable_in(tmp_path)
    return tmp_path


def callable_in(folder):
    """Create a program pgcli in the folder; return the variables with which a shell finds it."""
    (folder / "pgcli").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pgcli "$@"\n')
    (folder / "pgcli").chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_CACHE": str(folder / "hub"),
    }


class Bash:
    """A bash on a pseudo-terminal."""

    def __init__(self, folder):
        self.shown = ""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            variables = callable_in(folder) | {"PS1": "$ ", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | variables)

    def close(self):
        os.close(self.terminal)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)

    def type(self, keys, *, until):
        """Type keys, and wait for output that matches; return None if there is none."""
        os.write(self.terminal, keys.encode())
        self.shown, end = "", time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")
            if found := re.search(until, self.shown):
                return found
        return None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="drives bash")
def test_tab_key_completes_commands_models_formats_and_files(folder):
    bash = Bash(folder)
    try:
        bash.type(
            'eval "$(_PGCLI_COMPLETE=source_bash pgcli)"; echo rea""dy\n', until="ready\r\n.*[$] "
        )
        for typed, completed in (
            ("pgcli cap", "pgcli caption "),
            ("pgcli caption pho", "pgcli caption photos/"),
            ("pgcli caption photos/o", "pgcli caption photos/one.png "),
            ("pgcli caption photos --model m", "--model me/mine "),
            ("pgcli info m", "pgcli info me/mine "),
            ("pgcli caption photos --form", "--format "),
            ("pgcli caption photos --format t", "--format text "),
            ("pgcli caption photos --dtype b", "--dtype bfloat16 "),
            ("pgcli export photos --to co", "--to coco "),
            ("pgcli view pho", "pgcli view photos/"),
        ):
            assert bash.type(f"{typed}\t", until=re.escape(completed)), (typed, bash.shown)
            bash.type("\x15\n", until="[$] $")
    finally:
        bash.close()


def completions(folder, **variables):
    """The exit code and output of the program when a shell requests completions."""
    run = subprocess.run(
        ["pgcli"],
        env=os.environ | callable_in(folder) | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return run.returncode, run.stdout.strip()


@pytest.mark.nightly
def test_zsh_and_fish_complete_options_and_files(folder):
    def zsh(line):
        return completions(folder, _PGCLI_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)[1]

    def fish(line, action="get-args"):
        variables = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": action}
        return completions(folder, _PGCLI_COMPLETE="complete_fish", **variables)

    assert '"caption"' in zsh("pgcli cap")
    assert '"me/mine"' in zsh("pgcli info m")
    assert zsh("pgcli caption photos/o") == "_files"
    assert fish("pgcli cap")[1].startswith("caption\t")
    assert fish("pgcli caption photos --model m")[1] == "me/mine"
    assert fish("pgcli caption photos/o", "is-args")[0] == 1  # fish then offers files
    for shell, word in (("zsh", "compdef"), ("fish", "complete --command pgcli")):
        assert word in completions(folder, _PGCLI_COMPLETE=f"source_{shell}")[1]
