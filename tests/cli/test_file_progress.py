"""Tests the progress of commands that read result files: none for a command of seconds."""

import subprocess
import sys

import pytest

from pgcli.cli import console
from pgcli.cli.console import Screen
from pgcli.rows import answer_digest
from tests.support.exporting import saved
from tests.support.pages import box, drawn, row
from tests.support.runs import on_terminal

ROWS = 400
#: The command line, whose bars appear after DELAY seconds, by default a hundredth of one.
EARLY = """
import os, sys
from pgcli.cli import console
console.BAR_DELAY = float(os.environ.get("DELAY", "0.01"))
from pgcli.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
PROGRAM = [sys.executable, "-c", EARLY]
#: Each command with what its bars show.
COMMANDS = {
    "view rows.jsonl -o page.html --images .": (f"of {ROWS}", "/s"),
    "export rows.jsonl --to coco -o boxes.json --images .": (f"of {ROWS}", "/s"),
    "apply edits.json rows.jsonl -o applied.jsonl": ("reading rows", "/s"),
    "import truth.json --from coco --images . -o truth.jsonl": ("reading annotations", " s"),
    "merge rows.jsonl -o merged.jsonl": ("reading rows", "/s"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows with boxes, edits of them, and the same boxes as COCO."""
    monkeypatch.chdir(tmp_path)
    drawn(tmp_path, 5)
    rows = [row(n, image=f"{n % 5:05}.png", boxes=[box("cat")]) for n in range(ROWS)]
    saved(tmp_path / "rows.jsonl", rows)
    edit = {"index": 0, "id": rows[0]["id"], "prompt": rows[0]["prompt"], "state": "accepted"}
    edits = [edit | {"digest": answer_digest(rows[0])}]
    saved(tmp_path / "edits.json", [{"format": "pgcli edits", "version": 1, "edits": edits}])
    coco = {
        "images": [{"id": n, "file_name": f"{n:05}.png"} for n in range(5)],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": n % 5, "category_id": 1, "bbox": [1, 2, 5, 6]}
            for n in range(5 * ROWS)
        ],
    }
    saved(tmp_path / "truth.json", [coco])
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_command_shows_its_progress_after_a_delay(folder, command):
    shown = on_terminal(*command.split(), program=PROGRAM)
    assert "━" in shown
    for words in COMMANDS[command]:
        assert words in shown


def test_command_of_seconds_shows_no_bar(folder):
    assert console.BAR_DELAY == 2
    for command in list(COMMANDS)[:3]:
        shown = on_terminal(*command.split(), program=PROGRAM, DELAY="600")
        assert "pgcli: " in shown
        assert "\x1b[?25l" not in shown  # which hides the cursor
        assert "━" not in shown


@pytest.mark.parametrize("way", ["--quiet", "variable", "pipe"])
def test_progress_is_hidden_on_request_and_where_nobody_looks(folder, way):
    command = [*"apply edits.json rows.jsonl -o applied.jsonl".split()]
    if way == "pipe":
        run = subprocess.run([*PROGRAM, *command], capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stdout) == (0, "")
        shown = run.stderr
    else:
        option = ["--quiet"] if way == "--quiet" else []
        environment = {"PGCLI_NO_PROGRESS": "1"} if way == "variable" else {}
        shown = on_terminal(*command, *option, program=PROGRAM, **environment)
    assert "━" not in shown
    assert "reading rows" not in shown
    assert (folder / "applied.jsonl").exists()


def test_delay_is_counted_from_the_beginning_of_the_command(monkeypatch):
    """A later task of a command that has taken long shows its bar at once."""
    clock = [10.0]
    monkeypatch.setattr(console, "perf_counter", lambda: clock[0])
    screen = Screen(bar_delay=2.0)
    monkeypatch.setattr(Screen, "_draws_bars", True)
    assert screen.progress("reading rows")._timer is not None
    clock[0] = 12.5
    assert screen.progress("writing rows")._timer is None
