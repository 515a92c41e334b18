"""One way to the terminal: what comes from outside is shown without its control characters."""

import ast
import json
import logging
import re
import sys
import threading
import warnings
from pathlib import Path

import pytest
from filelock import FileLock
from PIL import Image

from pgcli.checkpoints.hub.progress import DownloadPlan, TqdmProgress
from pgcli.cli.ui import stdout
from pgcli.cli.ui.sanitize_logs import sanitized_logs
from pgcli.printable import CONTROL_CHARACTERS as STEERING
from tests.support.hub_server import Hub
from tests.support.runs import ROOT
from tests.support.terminal import on_terminal

#: What a clipboard is set by, a screen cleared, text turned round, a line forged, Rich upset.
HOSTILE = "a[/bold]\x1b]52;c;aGk\x07\x1b[2J\x9b2J\u202e\nforged"
SPELT = r"[/bold]\x1b]52;c;aGk\x07\x1b[2J\x9b2J\u202e\nforged"
IN_JSON = r"[/bold]\u001b]52;c;aGk\u0007\u001b[2J\u009b2J\u202e\nforged"
#: What the program itself writes: colours, the cursor hidden and shown, lines cleared, one up.
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|[\r\n]")


def shown(*arguments, **environment):
    """What a command writes to a wide terminal, which is the program's own but for plain text."""
    wide = {"columns": 2000, "COLUMNS": "2000"}
    told = on_terminal(*arguments, **wide | environment)
    foreign = STEERING.findall(OWN.sub("", told))
    assert not foreign, (foreign, told)
    assert not re.search(r"^forged", told, re.MULTILINE), told
    assert "Traceback" not in told, told
    return told


@pytest.fixture
def place(tmp_path):
    """A folder of hostile name with a picture and a broken one, of hostile names too."""
    folder = tmp_path / HOSTILE
    folder.mkdir(parents=True)
    Image.new("RGB", (40, 30), "red").save(folder / f"{HOSTILE.replace('/', '')}.png")
    (folder / "broken.png").write_text("no")
    return folder


@pytest.fixture
def manifest(place):
    """Rows that are hostile in all that a row may say."""
    picture = next(place.glob("a*.png"))
    row = {"image": picture.name, "id": HOSTILE, "prompt": HOSTILE, HOSTILE: HOSTILE}
    file = place / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


# what is answered


def test_rows_bar_and_summary_are_the_program_s_own(place):
    assert SPELT.replace("/", "") in shown("caption", place)
    told = shown("caption", place, "--model", "demo", "-o", place / "rows.jsonl")
    assert "━" in told
    assert SPELT in told


def test_json_on_a_terminal_is_spelt_in_ascii(place):
    told = shown("caption", place, "--format", "jsonl", "-q")
    assert IN_JSON.replace("/", "") in told
    assert OWN.sub("", told).isascii()


def test_a_manifest_s_ids_and_prompts_are_spelt(manifest):
    assert SPELT in shown("ask", manifest)
    assert SPELT in shown("ask", manifest, "--prompt", "{nothing}")
    manifest.write_text(manifest.read_text() * 2)
    assert SPELT in shown("ask", manifest)
    manifest.write_text('{"image": "x", "id": ["\\u001b[2J\\n"]}')
    shown("caption", manifest)


def test_a_plan_is_spelt(place):
    told = shown("ask", place, "--prompt", HOSTILE, "--choice", HOSTILE, "--choice", "b", "-v")
    assert told.count(SPELT) == 2
    assert SPELT in shown("caption", place, "--dry-run", "-o", place / "rows.jsonl")


# what is refused


@pytest.mark.parametrize(
    "arguments",
    [
        [HOSTILE],
        ["caption", "x.png", f"--{HOSTILE}"],
        ["caption", HOSTILE],
        ["caption", "PLACE", "--device", HOSTILE],
        ["caption", "PLACE", "--format", HOSTILE],
        ["caption", "PLACE", "--region", HOSTILE],
        ["caption", "PLACE", "--model", HOSTILE],
        ["caption", "PLACE", "--adapter", HOSTILE],
        ["caption", "PLACE", "-o", f"{HOSTILE}/rows.jsonl"],
        ["caption", "PLACE", "-o", HOSTILE],
        ["segment", "PLACE", "--object", HOSTILE, "--mask-decoder", HOSTILE],
        ["status", HOSTILE],
        ["check", HOSTILE],
        ["info", HOSTILE],
        ["verify", HOSTILE],
        ["verify", "demo", "--images", HOSTILE],
        ["bench", HOSTILE],
        ["bench", "-o", f"{HOSTILE}/bench.json"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(HOSTILE, "HOSTILE"),
)
def test_a_refusal_spells_what_it_names(place, arguments):
    told = shown(*(str(place) if one == "PLACE" else one for one in arguments))
    assert SPELT.partition(r"\n")[0] in told  # Typer spells a newline in its own way
    assert "pgcli: " in told


def test_a_variable_and_the_settings_file_are_spelt(place, tmp_path):
    assert SPELT in shown("caption", place, PGCLI_SEED=HOSTILE)
    file = tmp_path / "home" / "pgcli" / "config.toml"
    file.parent.mkdir(parents=True)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    for line in (f"output = {json.dumps(HOSTILE)}", f"seed = {json.dumps(HOSTILE)}"):
        file.write_text(line)
        assert SPELT in shown("caption", "--help", **home)
    assert SPELT in shown("caption", place, **home)
    file.write_text(f"{json.dumps(HOSTILE)} = 1")
    assert SPELT in shown("caption", place, **home)


def test_a_completion_that_no_shell_asks_for_is_spelt():
    assert SPELT.partition("_")[0] in shown(_PGCLI_COMPLETE=f"x_{HOSTILE}")


def test_a_model_s_files_are_spelt(place, tmp_path):
    from pgcli.checkpoints.find import BUILTIN

    folder = tmp_path / "model" / HOSTILE
    folder.parent.mkdir(parents=True)
    folder.symlink_to(BUILTIN)
    assert SPELT in shown("info", folder)
    folder.unlink()
    folder.mkdir()
    for config in ({"model_type": HOSTILE}, {HOSTILE: HOSTILE}, HOSTILE):
        (folder / "config.json").write_text(json.dumps(config))
        assert "config.json" in shown("caption", place, "--model", folder)


def test_what_the_hub_says_is_spelt(tmp_path):
    with Hub() as hub:
        about = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        about |= {"HF_HUB_VERBOSITY": "info"}
        hub.add("a/b", {"config.json": b"{}", f"{HOSTILE}.bin": b"x"})
        assert SPELT in shown("info", "a/b", **about)
        hub.edit_listing = lambda listing: listing | {"sha": HOSTILE}
        shown("info", "a/b", **about)
        index = {"weight_map": {"x": f"{HOSTILE}.safetensors"}}
        hub.edit_listing = dict
        hub.add("a/b", {"model.safetensors.index.json": json.dumps(index).encode()})
        shown("info", "a/b", **about)


# what lies beside an output


@pytest.fixture
def begun(place, tmp_path):
    """An output, and the folder of its state, both of hostile name."""
    output = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    shown("caption", place, "--model", "demo", "-o", output)
    return output, Path(f"{output}.pgcli")


def test_the_settings_that_differ_are_spelt(place, begun):
    output, folder = begun
    record = json.loads((folder / "run.json").read_text())
    record["settings"] |= {"command": HOSTILE, "prompts": [HOSTILE]}
    (folder / "run.json").write_text(json.dumps(record))
    told = shown("caption", place, "--model", "demo", "-o", output)
    assert f"command: a{SPELT} -> caption" in told


def test_whoever_uses_an_output_is_spelt(place, begun):
    output, folder = begun
    owner = {"pid": HOSTILE, "host": HOSTILE, "since": HOSTILE, "command": [HOSTILE]}
    with FileLock(folder / "lock"):
        (folder / "owner.json").write_text(json.dumps(owner))
        told = shown("caption", place, "--model", "demo", "-o", output)
        assert told.count(f"a{SPELT}") >= 3
        assert f"process a{SPELT} on a{SPELT}" in shown("status", output)
        assert IN_JSON in shown("status", output, "--json")


def test_how_a_run_stands_is_spelt(begun):
    output, folder = begun
    assert SPELT.replace("/", "") in shown("status", output)
    progress = json.loads((folder / "progress.json").read_text())
    (folder / "progress.json").write_text(json.dumps(progress | {"errors": {HOSTILE: 3}}))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"begun": HOSTILE}))
    shown("status", output)
    assert IN_JSON in shown("status", output, "--json")


def test_what_a_check_finds_is_spelt(begun):
    output, folder = begun
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    output.write_text("".join(json.dumps(row | {"id": HOSTILE}) + "\n" for row in lines))
    assert "[/bold]" in shown("check", output)
    record = json.loads((folder / "run.json").read_text())
    record["told"] |= {"folder": HOSTILE}
    (folder / "run.json").write_text(json.dumps(record))
    assert SPELT in shown("check", output)


def test_what_doctor_finds_is_spelt(tmp_path):
    file = tmp_path / "pgcli" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{json.dumps(HOSTILE)} = 1")
    told = {"HF_TOKEN": HOSTILE, "HF_HUB_OFFLINE": HOSTILE, "CUDA_VISIBLE_DEVICES": HOSTILE}
    about = told | {"XDG_CONFIG_HOME": str(tmp_path), "HF_HOME": str(tmp_path / HOSTILE)}
    assert SPELT in shown("doctor", **about)
    assert IN_JSON in shown("doctor", "--json", **about)


# what nobody asked for

ASIDES = f"""
import logging, sys, threading, warnings
from tests.support import pretend
hostile = {HOSTILE!r}

class Ended:
    def __del__(self):
        raise ValueError(hostile)

def fail():
    raise ValueError(hostile)

def opened(*_):
    warnings.warn(hostile)
    logging.getLogger("a.library").warning("%s", hostile)
    try:
        fail()
    except ValueError:
        logging.getLogger("a.library").exception("that was")
    thread = threading.Thread(target=fail, name=hostile)
    thread.start()
    thread.join()
    Ended()
    fail()

pretend.load_model = opened
sys.exit(pretend.main())
"""


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_what_libraries_and_bugs_say_is_spelt(place, debug):
    told = on_terminal(
        *("caption", place, *debug),
        program=[sys.executable, "-c", ASIDES],
        columns=2000,
        COLUMNS="2000",
    )
    assert not STEERING.findall(OWN.sub("", told)), told
    assert not re.search(r"^forged", told, re.MULTILINE), told
    assert told.count("    forged") == 4
    assert told.count(f"a{SPELT}") == 3  # those of a line: a warning, a record, the problem
    assert "please report it" in told


def test_libraries_are_left_as_they_were_behind_the_command():
    known = (
        warnings.formatwarning,
        logging.getLogRecordFactory(),
        threading.excepthook,
        sys.unraisablehook,
    )
    with sanitized_logs():
        assert warnings.formatwarning is not known[0]
    assert known == (
        warnings.formatwarning,
        logging.getLogRecordFactory(),
        threading.excepthook,
        sys.unraisablehook,
    )


def test_the_bar_that_python_users_see_spells_a_model_s_name(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with TqdmProgress() as bar:
        bar.message(HOSTILE)
        bar.start(DownloadPlan(name=HOSTILE, folder=Path(), total=2, cached=0, free=9))
        bar.advance(1)
    told = capsys.readouterr().err
    assert told.count(SPELT) >= 1
    assert not STEERING.findall(OWN.sub("", told))


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_printed_on_standard_output_is_spelt(capsys, monkeypatch, terminal):
    monkeypatch.setattr(stdout, "is_terminal", lambda stream: terminal)
    monkeypatch.setenv("COLUMNS", "2000")
    stdout.print_facts([(HOSTILE, HOSTILE)])
    stdout.print_cells([HOSTILE, HOSTILE])
    stdout.print_line(HOSTILE)
    told = capsys.readouterr().out
    assert told.count(f"a{SPELT}") == 5
    assert not STEERING.findall(OWN.sub("", told).replace("\t", ""))
    stdout.print_json({HOSTILE: HOSTILE})
    assert capsys.readouterr().out.count(IN_JSON) == 2


# that there is no other way

#: Who may name what leads to the terminal, beside nobody.
DOORS = {
    "print": set(),
    "input": set(),
    "typer.echo": {"cli/ui/stdout.py", "cli/app.py"},
    "typer.secho": set(),
    "Console": {"cli/ui/stdout.py"},
    "Text": {
        "cli/commands/doctor.py",
        "cli/ui/bench_report.py",
        "cli/ui/console.py",
        "cli/ui/progress_bar.py",
    },
    "TextColumn": {"cli/ui/progress_bar.py"},
    "tqdm": {"checkpoints/hub/progress.py", "api.py"},
    "tqdm.write": {"checkpoints/hub/progress.py"},
    "sys.stdout.write": set(),
    "sys.stderr.write": set(),
    "warnings.warn": set(),
    "logging.getLogger": {"images/decoder_warnings.py"},
    "os.write": set(),
    "Text.from_markup": set(),
    "Text.from_ansi": set(),
    "SystemExit": set(),
    "sys.exit": {"__main__.py"},
}
#: What passes without `printable(` because it is no text from outside.
PLAIN = {
    "cli/app.py: typer.echo(f'pgcli {__version__}')",
    "cli/app.py: typer.echo(context.get_help())",
    "cli/ui/stdout.py: typer.echo(json.dumps(value, indent=2))",
    "cli/ui/progress_bar.py: TextColumn(progress.task, style='bold')",  # a word of the program
    "cli/ui/progress_bar.py: Text(progress.amount())",  # numbers
    "cli/ui/progress_bar.py: Text(buffered.decode(errors='replace'))",  # made printable by a sink
    "cli/commands/doctor.py: Text(f.state, colour)",  # ok, warn or bad
}
SAID = ("typer.echo", "Text", "Text.assemble", "TextColumn", "tqdm.write", "SystemExit")


def calls():
    """Every call in the package: the file, the name that is called, the call."""
    for file in sorted((ROOT / "pgcli").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield file.relative_to(ROOT / "pgcli").as_posix(), ast.unparse(node.func), node


def test_only_a_few_files_lead_to_the_terminal():
    found = {name: set() for name in DOORS}
    for file, name, _ in calls():
        if name in found:
            found[name].add(file)
    assert found == DOORS


def test_what_is_said_there_is_printable_or_the_program_s_own():
    loose = set()
    for file, name, call in calls():
        told = ast.unparse(call)
        literal = all(isinstance(one, ast.Constant) for one in call.args)
        if name in SAID and not (literal or "printable" in told):
            loose.add(f"{file}: {told}")
    assert loose == PLAIN
