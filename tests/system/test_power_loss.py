"""After a power loss the rows that were synced remain, and the run resumes to the same output."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from pgcli.sinks import resumable
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
STEPS = [17, pytest.param(1, marks=pytest.mark.slow)]  # every call before which power is lost


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


@pytest.mark.parametrize("step", STEPS)
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
