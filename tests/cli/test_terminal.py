"""Foreign text reaches the terminal only with its control characters escaped."""

import ast
import json
import re
import sys

import pytest

from pgcli.cli import console
from pgcli.text import CONTROL_CHARACTERS as STEERING
from tests.support.runs import EXAMPLES, ROOT, on_terminal
from tests.support.servers import Hub

#: Sets the clipboard, clears the screen, reverses text, forges a line and is invalid markup.
HOSTILE = "a[/bold]\x1b]52;c;aGk\x07\x1b[2J\x9b2J\u202e\nforged"
ESCAPED = r"[/bold]\x1b]52;c;aGk\x07\x1b[2J\x9b2J\u202e\nforged"
IN_JSON = r"[/bold]\u001b]52;c;aGk\u0007\u001b[2J\u009b2J\u202e\nforged"
#: Sequences that the program writes: colours, cursor visibility, line clearing, cursor up.
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|[\r\n]")


def shown(*arguments, **options):
    """The output of a command on a wide terminal; its control characters are the program's own."""
    output = on_terminal(*arguments, columns=2000, **{"COLUMNS": "2000"} | options)
    foreign = STEERING.findall(OWN.sub("", output))
    assert not foreign, (foreign, output)
    assert not re.search(r"^forged", output, re.MULTILINE), output
    return output


def test_messages_on_a_terminal_are_escaped():
    """Other messages are in the scenario errors/terminal-safe."""
    output = shown("caption", HOSTILE)
    assert ESCAPED in output
    assert "Traceback" not in output


def test_answers_of_the_hub_are_escaped(tmp_path):
    with Hub() as hub:
        about = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        about |= {"HF_HUB_VERBOSITY": "info"}
        hub.add("a/b", {"config.json": b"{}", f"{HOSTILE}.bin": b"x"})
        assert ESCAPED in shown("info", "a/b", **about)
        hub.edit_listing = lambda listing: listing | {"sha": HOSTILE}
        shown("info", "a/b", **about)
        index = {"weight_map": {"x": f"{HOSTILE}.safetensors"}}
        hub.edit_listing = dict
        hub.add("a/b", {"model.safetensors.index.json": json.dumps(index).encode()})
        shown("info", "a/b", **about)


# messages of libraries

NOISY_RUN = f"""
import logging, sys, threading, warnings
from tests.support import pretend
hostile = {HOSTILE!r}

class Ended:
    def __del__(self):
        raise ValueError(hostile)

def fail():
    raise ValueError(hostile)

def opened(*_, **__):
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
def test_messages_of_libraries_and_bugs_are_escaped(debug):
    output = shown("caption", EXAMPLES, *debug, program=[sys.executable, "-c", NOISY_RUN])
    assert output.count("    forged") == 4
    assert output.count(f"a{ESCAPED}") == 3  # those of a line: a warning, a record, the problem
    assert "please report it" in output


@pytest.mark.parametrize("terminal", [True, False])
def test_standard_output_is_escaped(capsys, monkeypatch, terminal):
    monkeypatch.setattr(console, "is_terminal", lambda stream: terminal)
    monkeypatch.setenv("COLUMNS", "2000")
    console.print_facts([(HOSTILE, HOSTILE)])
    console.print_cells([HOSTILE, HOSTILE])
    console.print_line(HOSTILE)
    output = capsys.readouterr().out
    assert output.count(f"a{ESCAPED}") == 5
    assert not STEERING.findall(OWN.sub("", output).replace("\t", ""))
    console.print_json({HOSTILE: HOSTILE})
    assert capsys.readouterr().out.count(IN_JSON) == 2


# no other call writes to the terminal

#: Calls that write to the terminal, and the files that may contain them.
ALLOWED_CALLS = {
    "print": set(),
    "input": set(),
    "typer.echo": {"cli/console.py", "cli/main.py"},
    "typer.secho": set(),
    "Console": {"cli/console.py"},
    "Text": {"cli/console.py", "cli/progress.py", "cli/reports.py"},
    "TextColumn": {"cli/progress.py"},
    "tqdm": {"api/engine.py"},
    "tqdm.write": set(),
    "sys.stdout.write": set(),
    "sys.stderr.write": set(),
    "warnings.warn": {
        "checkpoints/adapters.py",
        "checkpoints/config.py",
        "checkpoints/hub.py",
        "engine/tokenizer.py",
        "engine/recorded_step.py",
        "model/attention.py",
        "model/cuda/optimize.py",
        "registry.py",
    },
    "logging.getLogger": {"images/decode.py"},
    "os.write": {"results/serving/edits_log.py"},
    "os.writev": set(),
    "Text.from_markup": set(),
    "Text.from_ansi": set(),
    "SystemExit": set(),
    "sys.exit": {"__main__.py"},
}
#: Calls without `printable(` that write no foreign text.
NOT_FOREIGN = {
    "cli/main.py: typer.echo(f'pgcli {__version__}')",
    "cli/main.py: typer.echo(context.get_help())",
    "cli/console.py: typer.echo(json.dumps(value, indent=2))",
    "cli/console.py: Text(line)",  # JSON of clean values
    "cli/reports.py: Text(f.state, colour)",  # ok, warn or bad
}
OUTPUT_CALLS = ("typer.echo", "Text", "Text.assemble", "TextColumn", "tqdm.write", "SystemExit")


def calls():
    """Every call in the package: its file, the called name and the call."""
    for file in sorted((ROOT / "pgcli").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield file.relative_to(ROOT / "pgcli").as_posix(), ast.unparse(node.func), node


def test_only_listed_files_write_to_the_terminal():
    found = {name: set() for name in ALLOWED_CALLS}
    for file, name, _ in calls():
        if name in found:
            found[name].add(file)
    assert found == ALLOWED_CALLS


def test_everything_written_to_the_terminal_is_printable():
    loose = set()
    for file, name, call in calls():
        output = ast.unparse(call)
        literal = all(isinstance(one, ast.Constant) for one in call.args)
        if name in OUTPUT_CALLS and not (literal or "printable" in output):
            loose.add(f"{file}: {output}")
    assert loose == NOT_FOREIGN
