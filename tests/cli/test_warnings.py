"""Warnings of pgcli reach the user as one line of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from pgcli.checkpoints.find import BUILTIN


def test_a_warning_about_a_checkpoint_is_one_line_on_stderr(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUILTIN, folder)
    values = {"eos_token_id": 1, "stop_strings": ["made\x1b[2Jup"]}
    (folder / "generation_config.json").write_text(json.dumps(values))
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    command = [sys.executable, "-m", "pgcli", "caption", "one.png", "--model", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "made" in line]
    assert len(lines) == 1
    assert lines[0].startswith("pgcli: generation_config.json: ")
    assert lines[0].endswith("and pgcli's do not")
    assert "\x1b" not in lines[0]
