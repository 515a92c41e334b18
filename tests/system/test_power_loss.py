"""After a power cut rows that were synced are there, and the run goes on to the same output."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from pgcli.sinks import resumable
from tests.support.making import Killed, chunks_of, key_of, made, many, places, row_texts
from tests.support.power import Disk

ITEMS = many(6)
OUTPUTS = ["rows.jsonl", "rows.parquet", "rows"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is synced, and a few are a chunk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # only what it promises counts
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_SYNCS", 0.0)
    chunks_of(4, monkeypatch)


@pytest.mark.parametrize("name", OUTPUTS)
def test_whenever_the_power_goes_no_row_that_was_synced_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made(tmp_path / f"whole-{name}", ITEMS)
    whole = row_texts(tmp_path / f"whole-{name}")
    for number in range(1, 1000):
        output = tmp_path / f"disk-{number}" / name
        output.parent.mkdir()
        saved = cut_off(output, number, monkeypatch)
        rows = row_texts(output)
        assert rows[: saved or 0] == whole[: saved or 0], number
        made(output, ITEMS, seed=number + 1)
        assert places(output) == key_of(ITEMS)
        assert row_texts(output) == whole
        if saved is None:
            assert number > 60
            return


@pytest.mark.parametrize("name", OUTPUTS)
def test_rows_without_errors_outlast_a_power_cut_while_the_others_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made(tmp_path / f"whole-{name}", ITEMS)
    whole = row_texts(tmp_path / f"whole-{name}")
    made(tmp_path / "before" / name, ITEMS, broken={1, 4})
    before = row_texts(tmp_path / "before" / name)
    good = {row for row in before if row in whole}
    for number in range(1, 1000):
        output = tmp_path / f"disk-{number}" / name
        shutil.copytree(tmp_path / "before", output.parent)
        saved = cut_off(output, number, monkeypatch, retry=True)
        assert good <= set(row_texts(output)), number
        made(output, ITEMS, seed=number, retry=True)
        assert row_texts(output) == whole, number
        if saved is None:
            assert number > 20
            return


def cut_off(
    output: Path, number: int, patch: pytest.MonkeyPatch, *, retry: bool = False
) -> int | None:
    """Have the power go before a call of a run; the rows it saved. None if it came to its end."""
    disk, rng, counts = Disk(output.parent, number), random.Random(number), [0]
    with disk.on(patch), suppress(Killed):
        made(output, ITEMS, seed=number, saved=counts.append, retry=retry)
    if disk.wreck is None:
        return None
    disk.left(rng, page=rng.choice((64, 4096)))
    return counts[-1]
