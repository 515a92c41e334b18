"""Options from the environment and the configuration file, and the flags that turn them off."""

from pathlib import Path

import pytest
import typer
from PIL import Image

from pgcli.cli.app import PANELS, declaration, negated, typer_command
from pgcli.cli.main import command_group
from pgcli.declare import options_of, parse_value
from pgcli.errors import UsageError

ROOT = Path(__file__).parents[2]
ANSWERING = ("caption", "ask", "detect", "segment", "ocr")


@pytest.fixture(autouse=True)
def folder(workdir, pretended):
    """The current folder, with an image."""
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), "red").save("photos/a.png")


COMMANDS = [name for summaries in PANELS.values() for name in summaries]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_can_be_turned_off(name):
    command = typer_command(name)
    group = command_group().make_context("pgcli", [], resilient_parsing=True)
    parser = command.make_parser(typer.Context(command, info_name=name, parent=group))
    for option in (one for record in declaration(name).records for one in options_of(record)):
        if option.kind is bool:
            given, _, _ = parser.parse_args([option.flag, negated(option.flag)])
            assert given[option.name] is False, option.name


def test_file_that_the_reference_shows_is_valid(cli):
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    Path("c.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    assert cli("detect photos --config c.toml --model demo -o rows.jsonl")[0] == 0
    assert cli("view rows.jsonl --config c.toml")[0] == 0
    assert cli("status rows.jsonl")[0] == 0  # the next tests read text again, not a log of JSON


def test_variables_are_those_of_a_machine_or_a_session():
    options = [
        one
        for name in COMMANDS
        for record in declaration(name).records
        for one in options_of(record)
    ]
    names = "MODEL REVISION ADAPTER DEVICE DTYPE QUANTIZE BATCH_SIZE ENGINES WORKERS ALLOW_URLS "
    names += "CONFIG LOG_FORMAT NO_PROGRESS QUIET DEBUG"
    assert {one.variable for one in options} - {None} == {f"PGCLI_{name}" for name in names.split()}


def test_help_has_all_options_after_all_only(cli):
    shown, everything = (cli(f"caption --help{words}")[1] for words in ("", " --all"))
    options = [one for record in declaration("caption").records for one in options_of(record)]
    assert [one.flag for one in options if f"{one.flag} " not in everything] == []
    assert [one.flag for one in options if one.seldom and f"{one.flag} " in shown] == []
    assert "--help --all shows all options" in shown
    assert len(options) <= 50  # and --help
    assert cli("caption --all")[0] == 2


@pytest.mark.parametrize(
    "line",
    [
        *("caption ''", "caption photos '' --model demo", "view '' -o v.html", "info ''"),
        *("check ''", "merge a.jsonl '' -o b.jsonl", "explain demo '' --prompt x -o e.html"),
    ],
)
def test_empty_argument_is_not_the_current_folder(cli, line):
    code, _, err = cli(line)
    assert code == 2
    assert "an argument is empty" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_empty_name_of_a_file_or_folder_is_refused(name):
    options = [option for record in declaration(name).records for option in options_of(record)]
    for option in (option for option in options if option.metavar in ("DIR", "FILE", "PATH")):
        with pytest.raises(UsageError, match=f"{option.flag} must not be empty"):
            parse_value(option, "", option.flag)
