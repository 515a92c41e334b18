"""Kills runs that write to a local S3: `python -m tests.support.kill_stored_runs --kills 60`.

Each run is the whole command line with a pretended model, one alone or several with `--join`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.stores import Store, open_folder
from tests.support.forkserver import ForkedRun
from tests.support.writable_stores import environment

ROOT = Path(__file__).parents[2]
IMAGES = 120
OPTIONS = ("--model", "demo", "--quiet", "--no-timing", "--rows-per-file", "4", "--workers", "0")
SECONDS_PER_ROW = 0.004
MAX_SECONDS = 6.0  # before a run is killed
KINDS = {"one run": 1, "three runs with --join": 3}


@dataclass
class KillReport:
    """Lost and repeated rows."""

    output: str
    kills: int = 0
    runs: int = 0
    reads: int = 0
    lost: int = 0
    twice: int = 0


@dataclass
class StoredKillReport(KillReport):
    """Lost and repeated rows, and the kills at which some of the rows were saved."""

    amid: int = 0


@contextmanager
def server() -> Iterator[None]:
    """A block in which `s3://bucket` leads to a server in a process of its own."""
    program = [sys.executable, "-m", "tests.support.writable_stores"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(process.stdout.readline().strip()).items():
                patch.setenv(name, value)
            yield
    finally:
        process.kill()
        process.communicate(timeout=60)


def started(folder: Path, url: str, join: list[str]) -> ForkedRun:
    """A run of the command line over the images in the folder."""
    return ForkedRun(
        ["caption", "photos", "-o", url, *OPTIONS, *join],
        env=os.environ | {"PRETEND_SECONDS": str(SECONDS_PER_ROW)},
        cwd=folder,
        stderr=subprocess.PIPE,
    )


def parts_of(objects: Store) -> list[str]:
    """The names of the files that are stored."""
    return sorted(entry.name for entry in objects.list("part-"))


def rows_of(objects: Store) -> list[str]:
    """The rows of all files that are stored; each can be read at any time."""
    files = [objects.read(name) for name in parts_of(objects)]
    tables = [pq.read_table(io.BytesIO(file or b"")) for file in files]
    return [json.dumps(row, sort_keys=True) for table in tables for row in table.to_pylist()]


def killed(folder: Path, kind: str, kills: int, rng: random.Random) -> StoredKillReport:
    """Kill runs this many times in total, and count lost and repeated rows."""
    report, processes = StoredKillReport(f"S3, {kind}"), KINDS[kind]
    (folder / "photos").mkdir()
    for number in range(IMAGES):
        Image.new("RGB", (8, 8 + number)).save(folder / f"photos/{number:03}.png")
    seconds = 0.0  # of a run alone, the second time
    for name in ("first", "second"):
        alone, began = open_folder(f"s3://bucket/{name}/"), time.monotonic()
        finish(started(folder, alone.url, []))
        seconds = min(MAX_SECONDS, time.monotonic() - began)
    whole = rows_of(alone)
    assert [json.loads(row)["index"] for row in whole] == list(range(IMAGES))
    while report.kills < kills:
        report.runs += 1
        objects = open_folder(f"s3://bucket/{report.runs}/")
        join = ["--join"] if processes > 1 else []
        running = [started(folder, objects.url, join) for _ in range(processes)]
        while running and report.kills < kills:
            time.sleep(rng.uniform(0, seconds))
            found = rows_of(objects)
            assert Counter(found) <= Counter(whole), "a file has other rows"
            report.reads += 1
            chosen = running.pop(rng.randrange(len(running)))
            chosen.kill()
            if finish(chosen):
                report.kills += 1
                report.amid += 0 < len(found) < len(whole)
                running.append(started(folder, objects.url, join))
        for run in running:
            finish(run)
        rows = rows_of(objects)
        report.lost += (Counter(whole) - Counter(rows)).total()
        report.twice += (Counter(rows) - Counter(whole)).total()
    return report


def finish(run: ForkedRun) -> bool:
    """Wait for a run; whether it was killed."""
    _, said = run.communicate(timeout=120)
    assert run.returncode in (0, -9), (run.returncode, said)
    return run.returncode == -9


def main() -> None:
    """Kill runs of each kind, and print a report for each."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    given.add_argument("--kills", type=int, default=60, help="of all kinds together")
    given.add_argument("--seed", type=int, default=0)
    options = given.parse_args()
    rng = random.Random(options.seed)
    for kind in KINDS:
        with server(), tempfile.TemporaryDirectory() as folder:
            report = killed(Path(folder), kind, -(-options.kills // len(KINDS)), rng)
            sys.stdout.write(f"{json.dumps(asdict(report))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
