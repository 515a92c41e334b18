"""After a power loss the rows that were synced remain, and the run resumes to the same output."""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from pgcli.cli.result_files.publish import publish
from pgcli.sinks import resumable
from pgcli.state import early_answers
from tests.support.fake_runs import (
    Killed,
    keys_of,
    many,
    rows_as_text,
    run_to,
    saved_keys,
    set_chunk_rows,
)
from tests.support.power_loss import Disk

ITEMS = many(6)
OUTPUTS = ["rows.jsonl", "rows.parquet", "rows"]
# every 17th call before which power is lost, every eighth, or every one
STEPS = [
    17,
    pytest.param(8, marks=pytest.mark.nightly),
    pytest.param(1, marks=pytest.mark.nightly),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is synced, and chunks have four rows."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the simulated disk records it
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_SYNCS", 0.0)
    set_chunk_rows(4, monkeypatch)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_power_loss_at_any_call_keeps_synced_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int
) -> None:
    run_to(tmp_path / f"whole-{name}", ITEMS)
    whole = rows_as_text(tmp_path / f"whole-{name}")
    for number in range(1, 1000, step):
        output = tmp_path / f"disk-{number}" / name
        output.parent.mkdir()
        saved = cut_off(output, number, monkeypatch)
        rows = rows_as_text(output)
        assert rows[: saved or 0] == whole[: saved or 0], number
        run_to(output, ITEMS, seed=number + 1)
        assert saved_keys(output) == keys_of(ITEMS)
        assert rows_as_text(output) == whole
        if saved is None:
            assert number > 60
            return


@pytest.mark.parametrize("step", STEPS[1:])
@pytest.mark.parametrize("name", OUTPUTS)
def test_power_loss_during_retry_keeps_good_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int
) -> None:
    run_to(tmp_path / f"whole-{name}", ITEMS)
    whole = rows_as_text(tmp_path / f"whole-{name}")
    run_to(tmp_path / "before" / name, ITEMS, broken={1, 4})
    before = rows_as_text(tmp_path / "before" / name)
    good = {row for row in before if row in whole}
    for number in range(1, 1000, step):
        output = tmp_path / f"disk-{number}" / name
        shutil.copytree(tmp_path / "before", output.parent)
        saved = cut_off(output, number, monkeypatch, retry=True)
        assert good <= set(rows_as_text(output)), number
        run_to(output, ITEMS, seed=number, retry=True)
        assert rows_as_text(output) == whole, number
        if saved is None:
            assert number > 20
            return


def cut_off(
    output: Path, number: int, patch: pytest.MonkeyPatch, *, retry: bool = False
) -> int | None:
    """Lose power before a call of a run; return the rows it saved, None if it finished."""
    disk, rng, counts = Disk(output.parent, number), random.Random(number), [0]
    with disk.on(patch), suppress(Killed):
        run_to(output, ITEMS, seed=number, saved=counts.append, retry=retry)
    if disk.wreck is None:
        return None
    disk.left(rng, page=rng.choice((64, 4096)))
    return counts[-1]


@pytest.mark.slow
def test_power_loss_while_a_journal_shrinks_keeps_its_synced_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_answers, "MIN_COMPACT_BYTES", 500)
    row = json.dumps({"answer": "x" * 90})
    for number in range(1, 1000):
        file = tmp_path / f"disk-{number}" / "waiting.jsonl"
        file.parent.mkdir()
        disk, rng = Disk(file.parent, number), random.Random(number)
        synced: set[int] = set()
        with disk.on(monkeypatch), suppress(Killed):
            journal = early_answers.Journal(file)
            for row_index in range(40):
                journal.add(row_index, row)
                journal.sync()
                synced.add(row_index)
                if row_index >= 2:
                    synced.discard(row_index - 2)
                    journal.remove(row_index - 2)
        if disk.wreck is None:
            assert number > 40
            return
        disk.left(rng, page=64)
        assert synced <= set(early_answers.Journal(file).load()), number


def test_power_loss_during_an_export_leaves_a_whole_one_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 1000):
        target = tmp_path / f"disk-{number}" / "export"
        target.parent.mkdir()
        with publish(target, is_folder=True, overwrite=True) as part:
            write_parts(part, "old")
        disk, rng = Disk(target.parent, number), random.Random(number)
        making = publish(target, is_folder=True, overwrite=True)
        with disk.on(monkeypatch), suppress(Killed), making as part:
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
