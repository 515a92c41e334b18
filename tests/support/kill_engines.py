"""Engines and runs killed at random rows: `python -m tests.support.kill_engines --kills 160`.

Commands with `--engines` and `--join` write JSON lines, one Parquet file and folders. Their engines
are started as those of any run, and need no model. Commands are forks of this process, which has
imported everything; one that is killed, or that ends because its engines were, is begun again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.driver_overhead import ready
from pgcli import workers
from pgcli.cli.job import loading
from pgcli.cli.main import main as pgcli
from pgcli.cluster.engine_pool import EnginePool
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.messages import EngineCounts, EngineInfo, LoadedEngine
from pgcli.cluster.start_method import start_method
from pgcli.images import ImageSpec
from pgcli.pipeline import Ask
from pgcli.records import Answer, DecodedImage, unanswered
from pgcli.sinks.reader import indexed_rows
from pgcli.state import shard

IMAGES, PROMPTS, CHUNK_ROWS = 120, ("a", "b"), 16
SECONDS_PER_ROW = 0.002
MOST_ROWS = 60  # that are answered between two kills
CRASHED = "worker_crashed"
#: The output, the options and the number of commands of each kind of run.
KINDS: dict[str, tuple[str, Sequence[str], int]] = {
    "JSON lines": ("rows.jsonl", ["--engines", "2"], 1),
    "one Parquet file": ("rows.parquet", ["--engines", "2"], 1),
    "a folder": ("rows/", ["--engines", "2", "--rows-per-file", str(CHUNK_ROWS)], 1),
    "a folder, three that join": ("rows/", ["--join", "--rows-per-file", str(CHUNK_ROWS)], 3),
}


@dataclass
class EngineKillReport:
    """What was killed, and what became of the rows.

    `ended` counts commands that ended because engines were killed, as while they were loaded, and
    `crashed` the rows with an error because engines were killed at their image each time.
    """

    output: str
    kills_of_commands: int = 0
    kills_of_engines: int = 0
    runs: int = 0
    ended: int = 0
    crashed: int = 0
    lost: int = 0
    twice: int = 0


class Commands:
    """The processes of commands that write one output, begun again until one has finished."""

    def __init__(self, folder: Path, kind: str, rng: random.Random, report: EngineKillReport):
        self._rng, self._report = rng, report
        self.output, options, count = KINDS[kind]
        self._words = ["ask", "../images.parquet", "--model", "demo", "-o", self.output, "--quiet"]
        self._words += ["--no-timing", *options]
        self._words += [word for prompt in PROMPTS for word in ("--prompt", prompt)]
        self._folder, self._notes = folder, folder / "answered"
        self._notes.touch()
        self.running = {self._begin() for _ in range(count)}

    def kill_after_some_rows(self) -> None:
        """Wait for rows to be answered, then kill a command or an engine."""
        wanted = self._notes.stat().st_size + self._rng.randrange(MOST_ROWS)
        while self.running and self._notes.stat().st_size < wanted:
            self._reap(os.WNOHANG)
            time.sleep(0.001)
        if not self.running:
            return
        command = self._rng.choice(sorted(self.running))
        engines = [] if self._rng.random() < 0.4 else children(command)
        with suppress(ProcessLookupError):
            os.kill(self._rng.choice(engines) if engines else command, signal.SIGKILL)
            self._report.kills_of_engines += bool(engines)
            self._report.kills_of_commands += not engines
        self._reap(os.WNOHANG)

    def end(self) -> None:
        """Wait until the output is complete."""
        while self.running:
            self._reap(0)

    def _reap(self, options: int) -> None:
        """Begin commands again that did not finish."""
        for command in list(self.running):
            pid, status = os.waitpid(command, options)
            if not pid:
                continue
            self.running.remove(command)
            code = os.waitstatus_to_exitcode(status)
            said = (self._folder / "said").read_text()[-1000:]
            # 12: engines that are forks hold the lock of a killed command until they end with it
            assert code in (0, 3, 12, 17, -signal.SIGKILL), f"exit code {code}: {said}"
            self._report.ended += code == 17
            if code not in (0, 3):
                self.running.add(self._begin())

    def _begin(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.chdir(self._folder)
            os.dup2(os.open("said", os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
            loading.load_model = partial(load_pool, self._notes)  # type: ignore[assignment]
            code = pgcli(self._words)
        finally:
            os._exit(code)


def children(command: int) -> list[int]:
    """The engine processes of a command, and the one that they are forked from."""
    try:
        return [child.pid for child in psutil.Process(command).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def load_pool(notes: Path, plan: Any, *_: object) -> EnginePool:
    slots = [EngineSlot(1)] * (plan.options.model.engines or 1)
    return EnginePool(partial(load, notes), slots, start_method(slots))


def load(notes: Path, slot: EngineSlot) -> LoadedEngine:
    """An engine that notes each row that it answers."""
    info = EngineInfo("light@1", "cpu", "float32", 2, ImageSpec(8))
    make_ask = partial(ask_of, os.open(notes, os.O_WRONLY | os.O_APPEND))
    return LoadedEngine(info, make_ask, EngineCounts, lambda state: None)


def ask_of(notes: int, should_stop: Callable[[], bool]) -> Ask:
    def ask(stream: Iterable[tuple[int, DecodedImage]]) -> Iterator[tuple[int, Answer]]:
        for first, image in stream:
            for row_index, prompt in enumerate(image.item.prompts, start=first):
                time.sleep(SECONDS_PER_ROW)
                os.write(notes, b".")
                row = unanswered(image, prompt, task="ask", model="light@1")
                yield row_index, replace(row, answer=f"{image.item.index} {prompt}")

    return ask


def killed(folder: Path, kind: str, kills: int, rng: random.Random) -> EngineKillReport:
    """Kill commands and engines this many times in all, and compare the rows."""
    report = EngineKillReport(kind)
    make_table(folder / "images.parquet")
    expected = [(index, prompt) for index in range(IMAGES) for prompt in PROMPTS]
    while report.kills_of_commands + report.kills_of_engines < kills:
        report.runs += 1
        run_folder = folder / str(report.runs)
        run_folder.mkdir()
        commands = Commands(run_folder, kind, rng, report)
        while commands.running and report.kills_of_commands + report.kills_of_engines < kills:
            commands.kill_after_some_rows()
        commands.end()
        rows = [row for _, row in indexed_rows(run_folder / commands.output.rstrip("/"))]
        assert all(row is not None for row in rows)
        found = [(row["index"], row["prompt"]) for row in rows if row is not None]
        report.lost += (Counter(expected) - Counter(found)).total()
        report.twice += (Counter(found) - Counter(expected)).total()
        assert report.lost or report.twice or found == expected, "rows are out of order"
        for row in filter(None, rows):
            report.crashed += row["error"] == CRASHED
            answer = f"{row['index']} {row['prompt']}"
            assert (row["error"], row["answer"]) in ((None, answer), (CRASHED, None)), row
    return report


def make_table(file: Path) -> None:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    pq.write_table(pa.table({"image": [data.getvalue()] * IMAGES}), file)


def main() -> None:
    """Kill runs of each kind, and print a report for each."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    given.add_argument("--kills", type=int, default=160, help="of all kinds together")
    given.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    given.add_argument("--seed", type=int, default=0)
    options = given.parse_args()
    rng = random.Random(options.seed)
    shard.CHUNK_ROWS = CHUNK_ROWS
    workers.prefetch = partial(ready, 8)  # type: ignore[assignment]
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            kills = -(-options.kills // len(options.kinds))
            report = killed(Path(folder), kind, kills, rng)
            sys.stdout.write(f"{json.dumps(asdict(report))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
