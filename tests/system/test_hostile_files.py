"""Deceptive files: pipes, devices, unreadable files, and links that are swapped."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pgcli.checkpoints.find import BUILTIN, find
from pgcli.cli.main import main
from pgcli.engine.loader import open_engine
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.run import model as running
from tests.support import pretend
from tests.support.awkward import drawing, unprivileged

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def image(tmp_path) -> Path:
    drawing(20, 10).save(tmp_path / "a.png")
    return tmp_path / "a.png"


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A writable copy of the built-in model's files."""
    return Path(shutil.copytree(BUILTIN, tmp_path / "model"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_pipe_among_the_files_of_a_checkpoint_is_named(name, checkpoint):
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(InvalidCheckpoint, match=f"{name} is not a regular file"):
        open_engine(find(str(checkpoint)))


@pytest.fixture
def here(monkeypatch, tmp_path) -> None:
    """A working folder that other users may enter, but not its parents."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_locked_model_file_is_not_called_damaged(name, checkpoint, here):
    (checkpoint / name).chmod(0)
    with unprivileged(), pytest.raises(InvalidCheckpoint) as refused:
        open_engine(find("./model"))
    assert f"{name} cannot be read: Permission denied" in str(refused.value)
    assert "change the permissions" in refused.value.hint
    assert "download" not in refused.value.hint


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_locked_model_folder_is_named(mode, checkpoint, here):
    checkpoint.chmod(mode)
    with unprivileged(), pytest.raises(ModelUnavailable) as refused:
        find("./model")
    checkpoint.chmod(0o755)
    assert str(refused.value) == "the model folder ./model cannot be read: Permission denied"


@pytest.mark.parametrize("source", ["images", "images/rows.jsonl"])
def test_link_that_is_swapped_just_before_it_is_opened_is_not_followed(
    source, tmp_path, monkeypatch
):
    images, output = tmp_path / "images", tmp_path / "rows.jsonl"
    link, secret = images / "b.png", tmp_path / "secret.png"
    images.mkdir()
    drawing(20, 10).save(images / "a.png")
    drawing(70, 70).save(secret)
    link.symlink_to("a.png")
    (images / "rows.jsonl").write_text('{"image": "a.png"}\n{"image": "b.png"}\n')
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    opened = os.open

    def swapping(path: Any, *arguments: Any, **options: Any) -> int:
        if path == str(link):
            link.unlink()
            link.symlink_to(secret)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swapping)
    words = ["caption", str(tmp_path / source), "--workers", "0", "--model", "demo"]
    assert main([*words, "-o", str(output)]) == 3
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    found = [(row["width"], row["error"]) for row in rows]
    assert found == [(20, None), (None, "path_not_allowed")]
    assert link.readlink() == secret
