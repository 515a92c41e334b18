"""The help pages and the completion of shells."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest
from typer.testing import CliRunner

from pgcli.cli.app import PANELS, declaration, typer_command
from pgcli.cli.main import app, command_group, main
from pgcli.declare import options_of
from pgcli.errors import PgcliError
from tests.support import forkserver
from tests.support.runs import EXAMPLES, ROOT, finished
from tests.support.towers import rows_of, unit, write_parquet

ANSWERING = ["caption", "ask", "detect", "segment", "ocr"]
MAKING_ROWS = [*ANSWERING, "embed", "score", "classify"]


COMMANDS = [name for summaries in PANELS.values() for name in summaries]
PAGES = [[], *([name] for name in COMMANDS)]


#: Options that depend on the command; docs/reference/options.md says what they mean in each.
DEPENDENT = (
    *(
        "--adapter",
        "--batch-size",
        "--dtype",
        "--exit-code",
        "--format",
        "--label",
        "--max-pixels",
        "--model",
    ),
    *("--on-error", "--output", "--overwrite", "--prompt", "--prompt-column", "--quantize"),
    *("--seed", "--text", "--verbose", "--view"),
)


def help_page(command, columns=80):
    return CliRunner().invoke(app, [*command, "-h"], env={"COLUMNS": str(columns)}).output


def examples(command):
    """The examples of a help page: the lines before its options."""
    page = help_page(command)
    before, panel, _ = page.partition("╭")
    assert panel
    return [line.strip()[2:] for line in before.splitlines() if line.strip().startswith("$ ")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with images, results and weights of the names in the examples."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("photos/one.png", "photos/two.png", "scans/one.png", "photo.jpg", "scan.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / "one.png", folder / name)
    (folder / "vae-oid.npz").touch()
    edits = {"format": "pgcli edits", "version": 1, "edits": []}
    (folder / "captions.edits.json").write_text(json.dumps(edits))
    (folder / "captions.jsonl.edits.jsonl").touch()
    text = {"type": "textarea", "value": {"text": "a drawing"}}
    task = {"data": {"image": "one.png"}, "annotations": [{"result": [text]}]}
    (folder / "tasks.json").write_text(json.dumps([task]))
    for name, task in (
        ("captions.jsonl", ["caption"]),
        ("again.jsonl", ["caption"]),
        ("boxes.jsonl", ["detect", "--object=a"]),
    ):
        assert finished(*task, "photos", "-o", name, cwd=folder).returncode == 0
    (folder / "truth.csv").write_text("id,caption\none.png,a drawing\n")
    write_parquet(folder / "photos.parquet", rows_of(unit(9, 192), model=None))
    return folder


@pytest.mark.parametrize("command", PAGES, ids=lambda words: "-".join(words) or "pgcli")
def test_help_texts_end_in_examples_that_run(command, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(files)
    variables = forkserver.install(tmp_path / "bin") | {"HF_HUB_CACHE": str(tmp_path / "hub")}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    found = examples(command)
    assert found
    for example in found:
        if "vidore/" in example or "pages.parquet" in example:
            example += " --help"
        elif any(name in command for name in MAKING_ROWS) or "caption" in example.split()[1:2]:
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


def test_the_exit_codes_are_in_the_help():
    page = " ".join(help_page([]).split())
    codes_text = page.partition("Exit codes: ")[2]
    codes = {problem.exit_code for problem in PgcliError.__subclasses__()} | {0, 3}
    for code in codes:
        assert re.search(rf"\b{code} [a-z]", codes_text), code


def test_reference_is_made_of_the_declarations():
    """By `python docs/reference.py > docs/reference/options.md`."""
    program = [sys.executable, str(ROOT / "docs" / "reference.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.check_output(program, env=environment, text=True, timeout=100)
    assert made == (ROOT / "docs" / "reference" / "options.md").read_text()
    for command in COMMANDS:
        for param in typer_command(command).params:
            for name in param.opts:
                assert f"`{name}`" in made or not name.startswith("-"), name


def test_an_option_means_the_same_in_every_command_that_has_it():
    meanings: dict[str, set[str]] = defaultdict(set)
    for name in COMMANDS:
        for record in declaration(name).records:
            for option in options_of(record):
                meanings[option.flag].add(option.help)
    assert sorted(flag for flag, helps in meanings.items() if len(helps) > 1) == [*DEPENDENT]
