"""Options from the environment and the configuration file, and the flags that turn them off."""

import json
from pathlib import Path

import pytest
import typer
from PIL import Image

from pgcli.cli.app import PANELS, declared, negated, typer_command
from pgcli.cli.main import command_group, main
from pgcli.declare import options_of
from pgcli.run import model as running
from tests.support import pretend

pytestmark = pytest.mark.usefixtures("clean_environment")

ROOT = Path(__file__).parents[2]
ANSWERING = ("caption", "ask", "detect", "segment", "ocr")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with an image, and a model that needs no loading."""
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), "red").save("photos/a.png")
    return tmp_path


def call(capsys, line):
    capsys.readouterr()
    code = main(line.split() if isinstance(line, str) else line)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


COMMANDS = [name for summaries in PANELS.values() for name in summaries]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_can_be_turned_off(name):
    command = typer_command(name)
    group = command_group().make_context("pgcli", [], resilient_parsing=True)
    parser = command.make_parser(typer.Context(command, info_name=name, parent=group))
    for option in (one for record in declared(name).records for one in options_of(record)):
        if option.kind is bool:
            given, _, _ = parser.parse_args([option.flag, negated(option.flag)])
            assert given[option.name] is False, option.name


def test_flag_of_the_environment_is_turned_off_by_the_command_line(capsys, monkeypatch):
    monkeypatch.setenv("PGCLI_QUIET", "1")
    monkeypatch.setenv("PGCLI_NO_TIMING", "1")
    code, out, err = call(capsys, "caption photos --model demo --no-quiet --timing")
    assert (code, "pgcli: 1 row\n" in err) == (0, True)
    assert json.loads(out)["vision_ms"] is not None


def test_flag_of_the_file_is_turned_off_by_the_command_line(capsys):
    Path("c.toml").write_text("quiet = true\n[detect]\nstrict = true\n")
    line = "detect photos --object a --model demo --dry-run --config c.toml"
    assert call(capsys, line)[2] == ""
    assert "answers: whole boxes" in call(capsys, f"{line} --no-quiet")[2]
    assert "answers: whole boxes" not in call(capsys, f"{line} --no-quiet --no-strict")[2]


def test_view_and_export_do_not_read_the_settings_of_runs(capsys, monkeypatch):
    assert call(capsys, "detect photos --object a --model demo -o rows.jsonl")[0] == 0
    before = Path("rows.jsonl").read_bytes()
    for name, value in {
        "OUTPUT": "rows.jsonl",
        "OVERWRITE": "1",
        "DRAW": "drawn",
        "LIMIT": "none",
        "FORMAT": "text",
    }.items():
        monkeypatch.setenv(f"PGCLI_{name}", value)
    settings = Path("config/pgcli/config.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text("overwrite = true\noutput = 'rows.jsonl'\ndraw = 'drawn'\nlimit = 'none'\n")
    assert call(capsys, "view rows.jsonl")[0] == 0
    assert Path("rows.html").exists()
    Path("mine.html").write_text("mine")
    assert call(capsys, "view rows.jsonl -o mine.html")[0] == 13
    assert call(capsys, "export rows.jsonl --to csv -o mine.html")[0] == 13
    assert Path("mine.html").read_text() == "mine"
    assert Path("rows.jsonl").read_bytes() == before
    assert not Path("drawn").exists()


def test_table_of_a_command_sets_all_of_its_options(capsys):
    assert call(capsys, "caption photos --model demo -o rows.jsonl")[0] == 0
    Path("c.toml").write_text(
        '[export]\nto = "csv"\noutput = "rows.csv"\n[view]\noutput = "v.html"'
    )
    assert call(capsys, "export rows.jsonl --config c.toml")[0] == 0
    assert call(capsys, "view rows.jsonl --config c.toml")[0] == 0
    assert (Path("rows.csv").exists(), Path("v.html").exists()) == (True, True)
    Path("c.toml").write_text('to = "csv"')
    code, _, err = call(capsys, "export rows.jsonl --config c.toml")
    assert code == 2
    assert "c.toml: to is not an option of all commands\nhint: write it below [export]" in err


def test_view_is_an_option_and_a_command(capsys):
    """The file that docs/reference.md shows, in which both have their settings."""
    page = (ROOT / "docs" / "reference.md").read_text()
    Path("c.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    line = "photos --object a --model demo --config c.toml"
    assert call(capsys, f"detect {line} -o rows.jsonl")[0] == 0
    assert call(capsys, "view rows.jsonl --config c.toml")[0] == 0
    Path("c.toml").write_text('view = "size.html"')
    assert call(capsys, f"detect {line} -o again.jsonl")[0] == 0
    assert Path("size.html").exists()
    assert call(capsys, "view rows.jsonl --config c.toml -o v.html")[0] == 0


@pytest.mark.parametrize(
    ("text", "line", "prompts"),
    [
        ('object = ["cat", "red car"]', "detect photos", ["detect cat ; red car"]),
        ('object = "cat"', "detect photos", ["detect cat"]),
        ('[segment]\nobject = ["cat", "dog"]', "segment photos", ["segment cat ; dog"]),
        ('prompt = ["what is it?", "why?"]', "ask photos", ["what is it?", "why?"]),
        ('prompt = "what is it?"\nchoice = ["a", "b"]', "ask photos", ["what is it?"]),
        ('prompt = ["what is it?"]', "ask photos --prompt how?", ["how?"]),
    ],
)
def test_repeatable_options_are_lists_in_the_file(capsys, text, line, prompts):
    Path("c.toml").write_text(text)
    code, out, err = call(capsys, f"{line} --model demo --config c.toml --verbose")
    assert code == 0, err
    assert [json.loads(row)["prompt"] for row in out.splitlines()] == prompts
    assert ("choices: a, b" in err) == ("choice" in text)


def test_config_names_the_file_before_and_after_the_command(capsys, monkeypatch):
    own = Path("config/pgcli/config.toml")
    own.parent.mkdir(parents=True)
    own.write_text("broken =")
    Path("c.toml").write_text('lang = "de"')
    plan = "caption photos --model demo --dry-run"
    assert "prompt: caption de" in call(capsys, f"{plan} --config c.toml")[2]
    assert "prompt: caption de" in call(capsys, f"--config c.toml {plan}")[2]
    monkeypatch.setenv("PGCLI_CONFIG", "c.toml")
    assert "prompt: caption de" in call(capsys, plan)[2]
    assert "prompt: caption en" in call(capsys, f"{plan} --config /dev/null")[2]


def test_file_of_config_is_named_by_its_errors(capsys):
    Path("c.toml").write_text("limit = 0")
    plan = "caption photos --model demo --dry-run"
    assert "c.toml: limit: 0 is not" in call(capsys, f"{plan} --config c.toml")[2]
    code, _, err = call(capsys, f"{plan} --config nowhere.toml")
    assert (code, "there is no configuration file nowhere.toml" in err) == (2, True)
    assert "bad\tsettings\tthere is no" in call(capsys, "doctor --config nowhere.toml")[1]


def test_variables_mean_the_same_in_all_commands():
    """Those of options that answering commands have too."""
    shared = {}
    for command in (*ANSWERING, *COMMANDS):
        for option in (one for record in declared(command).records for one in options_of(record)):
            if option.variable and (command in ANSWERING or option.variable in shared):
                meaning = (option.kind, option.parse, option.panel, option.default)
                assert shared.setdefault(option.variable, meaning) == meaning, command
