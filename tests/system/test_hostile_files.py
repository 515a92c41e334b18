"""Files that are not what they seem: pipes, devices, locked files, and links that are swapped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgcli.checkpoints.find import BUILTIN, find
from pgcli.cli.main import main
from pgcli.engine.loader import load
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.inputs import Inventory
from pgcli.run import model as running
from tests.support import forkserver, pretend
from tests.support.awkward import drawing, unprivileged

pytestmark = pytest.mark.usefixtures("clean_environment")

SWAP = """
import os, sys
inside, outside, *links = sys.argv[1:]
while True:
    for target in (outside, inside):
        for link in links:
            os.symlink(target, link + ".new")
            os.replace(link + ".new", link)
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    drawing(20, 10).save(tmp_path / "a.png")
    return tmp_path / "a.png"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The built-in model as files of its own."""
    return Path(shutil.copytree(BUILTIN, tmp_path / "model"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_pipe_among_the_files_of_a_checkpoint_is_named(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(InvalidCheckpoint, match=f"{name} is not a regular file"):
        load(find(str(checkpoint)))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A working folder that other users may enter, though not its parents."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_locked_model_file_is_not_called_damaged(name: str, checkpoint: Path, here: None) -> None:
    (checkpoint / name).chmod(0)
    with unprivileged(), pytest.raises(InvalidCheckpoint) as refused:
        load(find("./model"))
    assert f"{name} cannot be read: Permission denied" in str(refused.value)
    assert "change its permissions" in refused.value.hint
    assert "download" not in refused.value.hint


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_locked_model_folder_is_named(mode: int, checkpoint: Path, here: None) -> None:
    checkpoint.chmod(mode)
    with unprivileged(), pytest.raises(ModelUnavailable) as refused:
        find("./model")
    checkpoint.chmod(0o755)
    assert str(refused.value) == "the model folder ./model cannot be read: Permission denied"


def test_link_that_is_swapped_after_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, secret = tmp_path / "images", tmp_path / "secret.png"
    images.mkdir()
    drawing(20, 10).save(images / "a.png")
    drawing(70, 70).save(secret)
    (images / "b.png").symlink_to("a.png")
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    checked = Inventory._item

    def swapping(*arguments: Any) -> object:
        item = checked(*arguments)
        (images / "b.png").unlink()
        (images / "b.png").symlink_to(secret)
        return item

    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr(Inventory, "_item", swapping)
    assert main(["caption", str(images), "-o", str(output), "--model", "demo"]) == 3
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["width"], row["error"]) for row in rows] == [
        (20, None),
        (None, "path_not_allowed"),
    ]


@pytest.mark.parametrize("kind", ["folder", "manifest"])
def test_links_swapped_in_a_loop_never_lead_outside(kind: str, tmp_path: Path) -> None:
    images, secret = tmp_path / "images", tmp_path / "secret.png"
    images.mkdir()
    drawing(20, 10).save(images / "real.png")
    drawing(70, 70).save(secret)
    links = [images / f"{number:03}.png" for number in range(100)]
    for link in links:
        link.symlink_to(images / "real.png")
    manifest = images / "rows.jsonl"
    manifest.write_text("".join(json.dumps({"image": link.name}) + "\n" for link in links))
    names = [str(images / "real.png"), str(secret), *map(str, links)]
    attacker = subprocess.Popen([sys.executable, "-c", SWAP, *names])
    try:
        source = images if kind == "folder" else manifest
        words = ["caption", str(source), "--model", "demo", "--max-errors", "100%"]
        run = forkserver.run([*words, "--workers", "2"], env=os.environ, timeout=100)
    finally:
        attacker.kill()
        attacker.wait(timeout=60)
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == 100 + (kind == "folder"), run.stderr
    assert {row["width"] for row in rows} <= {20, None}
    assert {row["error"] for row in rows} <= {"path_not_allowed", None}
