"""Runs that write to an object store are killed at random moments, and lose no row."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.stub_runs import make_images, start_program, wait
from tests.support.writable_stores import used_store

URL, OPTIONS = "s3://bucket/{}/", {"rows_per_file": 4}
KINDS: dict[str, list[dict[str, Any]]] = {
    "alone": [{}],
    "joined": [{"join": True}] * 2,
    "engines": [{"engines": 2}],
}


def rows_in(files: dict[str, bytes], name: str) -> list[str]:
    """The rows of the files of an output, each of which can be read at any time."""
    prefix = f"bucket/{name}/part-"
    data = [files[key] for key in sorted(files) if key.startswith(prefix)]
    tables = [pq.read_table(io.BytesIO(file)) for file in data]
    return [json.dumps(row, sort_keys=True) for table in tables for row in table.to_pylist()]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [4, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_runs_into_a_store_are_killed_and_lose_no_row(
    tmp_path: Path, kind: str, kills: int
) -> None:
    make_images(tmp_path / "images", 10, broken=[3])
    (tmp_path / "run").mkdir()
    rng = random.Random(kills)
    said = (tmp_path / "said").read_text
    with used_store() as files:
        began = time.monotonic()
        assert wait(start_program(tmp_path / "run", URL.format("whole"), **OPTIONS)) == 3, said()
        seconds = 1.5 * (time.monotonic() - began)
        rows = rows_in(files, "whole")
        assert len(rows) == 20
        number = 0
        while kills > 0:
            number += 1
            name = f"run{number}"
            url = URL.format(name)
            running = {
                start_program(tmp_path / "run", url, seconds=0.01, **OPTIONS | more): more
                for more in KINDS[kind]
            }
            while running:
                if kills > 0:
                    time.sleep(rng.uniform(0, seconds))
                    pid = rng.choice(list(running))
                    os.kill(pid, signal.SIGKILL)
                    kills -= 1
                else:
                    pid = next(iter(running))
                code, more = wait(pid), running.pop(pid)
                assert code in (0, 3, 12, -signal.SIGKILL), said()[-3000:]
                assert set(rows_in(files, name)) <= set(rows)
                if code not in (0, 3):
                    time.sleep(0.3 * (code == 12))
                    running[
                        start_program(tmp_path / "run", url, seconds=0.01, **OPTIONS | more)
                    ] = more
            assert rows_in(files, name) == rows
