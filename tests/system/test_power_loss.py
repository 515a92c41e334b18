"""After a power loss an export is complete or absent."""

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from pgcli.stores.writing import Target
from tests.support.power_loss import Disk, Killed


@pytest.fixture(autouse=True)
def synced(monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the simulated disk records it


def test_power_loss_during_an_export_leaves_a_complete_one_or_none(tmp_path, monkeypatch):
    for number in range(1, 1000):
        target = tmp_path / f"disk-{number}" / "export"
        target.parent.mkdir()
        export = Target(name=str(target), kind="whole folder", overwrite=True)
        with export.publish() as part:
            write_parts(part, "old")
        disk, rng = Disk(target.parent, number), random.Random(number)
        with disk.on(monkeypatch), suppress(Killed), export.publish() as part:
            write_parts(part, "new")
        if disk.wreck is None:
            assert number > 8
            return
        disk.left(rng, page=64)
        texts = {file.name: file.read_text() for file in target.rglob("*.txt")}
        whole = [{"a.txt": text * 200, "b.txt": text * 200} for text in ("old", "new")]
        assert not target.exists() or texts in whole, number


def write_parts(folder: Path, text: str) -> None:
    """Write two files, one of them in a folder."""
    (folder / "a.txt").write_text(text * 200)
    (folder / "labels").mkdir()
    (folder / "labels" / "b.txt").write_text(text * 200)
