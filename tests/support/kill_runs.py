"""Runs killed at random instants: `python -m tests.support.kill_runs --kills 2000`.

The model is a function. A run is a fork of this process, which has imported everything, so that it
can be killed after a few milliseconds. Other libraries read a folder while it is written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow.dataset
import pytest

from pgcli.state.shard import Shard
from tests.support.fake_runs import keys_of, many, rows_as_text, run_to, saved_keys, set_chunk_rows

ITEMS = many(120)
CHUNK_ROWS = 16
SECONDS_PER_ROW = 0.0005
LONGEST_SECONDS = 0.08  # before a run is killed
READERS: Sequence[Callable[[Path], int]] = (
    lambda folder: int(pyarrow.dataset.dataset(folder).count_rows()),
    lambda folder: len(pandas.read_parquet(folder)),
    lambda folder: len(polars.read_parquet(folder)),
    lambda folder: len(duckdb.sql(f"select id from '{folder}/**/*.parquet'").fetchall()),
)
#: The name of an output, and the shards that processes write at the same time.
KINDS: dict[str, tuple[str, Sequence[Shard | None]]] = {
    "JSON lines": ("rows.jsonl", [None]),
    "one Parquet file": ("rows.parquet", [None]),
    "a folder": ("rows", [None]),
    "a folder, three shards": ("rows", [Shard(n, 3) for n in range(3)]),
    "a folder, each chunk by two": ("rows", [Shard(0, 1), Shard(0, 2), Shard(1, 2)]),
}


@dataclass
class KillReport:
    """The rows of an output that were lost, written twice, and processed again after a kill."""

    output: str
    kills: int = 0
    runs: int = 0
    lost: int = 0
    twice: int = 0
    repeated: int = 0
    most_repeated: int = 0
    reads: int = 0


class Runs:
    """The processes that write one output, killed at random and restarted until they finish."""

    def __init__(self, output: Path, shards: Sequence[Shard | None], rng: random.Random):
        self.output, self._rng = output, rng
        self.processed: dict[Shard | None, list[set[int]]] = {shard: [] for shard in shards}
        self.running: dict[int, Shard | None] = {}
        for shard in shards:
            self._begin(shard)

    def kill_one(self) -> bool:
        """Kill one of the processes and restart it; False if it had finished."""
        process = self._rng.choice(list(self.running))
        os.kill(process, signal.SIGKILL)
        return self._wait(process)

    def end(self) -> None:
        """Wait for all processes to finish."""
        while self.running:
            self._wait(next(iter(self.running)))

    def _wait(self, process: int) -> bool:
        _, status = os.waitpid(process, 0)
        shard = self.running.pop(process)
        text = self._notes(shard).read_text()
        self.processed[shard].append({int(line) for line in text.splitlines()})
        if os.WIFSIGNALED(status):
            self._begin(shard)
            return True
        assert os.waitstatus_to_exitcode(status) == 0, "a run failed"
        return False

    def _begin(self, shard: Shard | None) -> None:
        notes, seed = self._notes(shard), self._rng.random()
        notes.write_bytes(b"")
        process = os.fork()
        if process:
            self.running[process] = shard
            return
        code = 1
        try:
            descriptor = os.open(notes, os.O_WRONLY)
            note = partial(noted, descriptor)
            run_to(self.output, ITEMS, seed=int(seed * 2**32), shard=shard, on_row=note)
            code = 0
        finally:
            os._exit(code)

    def _notes(self, shard: Shard | None) -> Path:
        return self.output.parent / f"processed{shard.part if shard else ''}"


def noted(descriptor: int, row_index: int) -> None:
    time.sleep(SECONDS_PER_ROW)
    os.write(descriptor, b"%d\n" % row_index)


def killed(folder: Path, kind: str, kills: int, rng: random.Random) -> KillReport:
    """Kill runs this many times in total, and count lost and repeated rows."""
    name, shards = KINDS[kind]
    report = KillReport(kind)
    run_to(folder / "whole" / name, ITEMS)
    whole = rows_as_text(folder / "whole" / name)
    while report.kills < kills:
        report.runs += 1
        output = folder / str(report.runs) / name
        output.parent.mkdir()
        runs = Runs(output, shards, rng)
        while runs.running and report.kills < kills:
            report.reads += read_folder(output, rng)
            time.sleep(rng.uniform(0, LONGEST_SECONDS))
            report.kills += runs.kill_one()
        runs.end()
        rows = rows_as_text(output)
        report.lost += (Counter(whole) - Counter(rows)).total()
        report.twice += (Counter(rows) - Counter(whole)).total()
        assert saved_keys(output) == keys_of(ITEMS), "rows are out of order"
        for processed in runs.processed.values():
            count_repeated(report, processed)
    return report


def read_folder(output: Path, rng: random.Random) -> int:
    """Read the folder with another library while it is written; its files are complete."""
    if output.suffix or not any(output.glob("*.parquet")):
        return 0
    count = rng.choice(READERS)(output)
    assert count % CHUNK_ROWS in (0, len(keys_of(ITEMS)) % CHUNK_ROWS), "a file is not complete"
    return 1


def count_repeated(report: KillReport, processed: Sequence[set[int]]) -> None:
    """Count the rows that a run processed again after an earlier run."""
    before: set[int] = set()
    for these in processed:
        report.repeated += len(these & before)
        report.most_repeated = max(report.most_repeated, len(these & before))
        before |= these


def main() -> None:
    """Kill runs of each kind of output, and print a report for each."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    given.add_argument("--kills", type=int, default=2000, help="of all kinds together")
    given.add_argument("--seed", type=int, default=0)
    options = given.parse_args()
    rng = random.Random(options.seed)
    with pytest.MonkeyPatch.context() as patch:
        set_chunk_rows(CHUNK_ROWS, patch)
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                kills = -(-options.kills // len(KINDS))
                report = json.dumps(asdict(killed(Path(folder), kind, kills, rng)))
                sys.stdout.write(f"{report}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
