"""Tests the progress of commands that read result files: none for a command of seconds."""

import sys

import pytest

from pgcli.cli import console
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
