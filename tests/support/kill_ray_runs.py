"""Kills what a run on Ray consists of: `python -m tests.support.kill_ray_runs --kills 40`.

Actors, nodes and drivers of a cluster on this machine are killed at random moments, with output in
a folder and in a local S3. A driver that is killed is begun again, a node is replaced by another.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from PIL import Image

from pgcli.stores import open_folder
from tests.support.kill_stored_runs import OPTIONS, KillReport, rows_of
from tests.support.ray_cluster import actors, add_node, local_cluster, start_run

IMAGES = 160
CHUNK_SECONDS = 0.5
MOST_SECONDS = 12.0  # between two kills: as long as it takes to start an engine on a busy machine
END_SECONDS = 300
Rows = Callable[[], list[str]]


@dataclass
class RayKillReport(KillReport):
    """Lost and repeated rows, and what was killed."""

    victims: dict[str, int] = field(default_factory=dict)


def stored_output(name: str) -> tuple[str, Rows]:
    """The name of an output in the local S3, and a function that reads its rows."""
    objects = open_folder(f"s3://bucket/{name}/")
    return objects.url, lambda: rows_of(objects)


def folder_output(name: str) -> tuple[str, Rows]:
    """The name of an output folder, and a function that reads its rows."""

    def rows() -> list[str]:
        tables = map(pq.read_table, sorted(Path(name).glob("part-*.parquet")))
        return [json.dumps(row, sort_keys=True) for table in tables for row in table.to_pylist()]

    return f"{name}/", rows


class RayRun:
    """A run on two nodes, whose parts are killed."""

    def __init__(self, cluster: Any, nodes: list[Any], output: str):
        self._cluster, self._nodes, self._output = cluster, nodes, output
        self._driver = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return start_run(self._cluster, ["caption", "photos", "-o", self._output, *OPTIONS])

    @property
    def has_ended(self) -> bool:
        return self._driver.poll() is not None

    def kill(self, victim: str, rng: random.Random) -> bool:
        """Kill an actor, a node or the driver; False if there is none."""
        if victim == "driver":
            self._driver.kill()
            self._driver.communicate(timeout=END_SECONDS)
            self._driver = self._start()
        elif victim == "node":
            node = self._nodes.pop(rng.randrange(len(self._nodes)))
            self._cluster.remove_node(node, allow_graceful=False)
            self._nodes.append(add_node(self._cluster))
        else:
            alive = sorted(filter(psutil.pid_exists, actors()))
            if not alive:
                return False
            os.kill(rng.choice(alive), signal.SIGKILL)
        return True

    def finish(self) -> None:
        _, said = self._driver.communicate(timeout=END_SECONDS)
        assert self._driver.returncode == 0, (self._driver.returncode, said)


def killed(cluster: Any, name: str, kills: int, rng: random.Random) -> RayKillReport:
    """Kill parts of runs this many times in total, and count lost and repeated rows."""
    make = stored_output if name == "S3" else folder_output
    report, nodes = RayKillReport(name), [add_node(cluster) for _ in range(2)]
    output, rows = make("whole")
    RayRun(cluster, nodes, output).finish()
    whole = Counter(rows())
    assert whole.total() == IMAGES
    while report.kills < kills:
        report.runs += 1
        output, rows = make(f"rows-{report.runs}")
        run = RayRun(cluster, nodes, output)
        while report.kills < kills:
            time.sleep(rng.uniform(0, MOST_SECONDS))
            if run.has_ended:
                break
            assert Counter(rows()) <= whole, "a file has other rows"
            report.reads += 1
            victim = rng.choice(("actor", "actor", "node", "driver"))
            if run.kill(victim, rng):
                report.kills += 1
                report.victims[victim] = report.victims.get(victim, 0) + 1
        run.finish()
        found = Counter(rows())
        report.lost += (whole - found).total()
        report.twice += (found - whole).total()
    for node in nodes:
        cluster.remove_node(node)
    return report


def main() -> None:
    """Kill runs with each kind of output, and print a report for each."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    given.add_argument("--kills", type=int, default=40, help="of all kinds together")
    given.add_argument("--seed", type=int, default=0)
    options = given.parse_args()
    rng = random.Random(options.seed)
    os.environ["CHUNK_SECONDS"] = str(CHUNK_SECONDS)
    for name in ("a folder", "S3"):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("photos").mkdir()
            for number in range(IMAGES):
                Image.new("RGB", (8, 8 + number)).save(f"photos/{number:03}.png")
            with local_cluster() as cluster:
                report = killed(cluster, name, -(-options.kills // 2), rng)
            sys.stdout.write(f"{json.dumps(asdict(report))}\n")
            sys.stdout.flush()
            os.chdir("/")


if __name__ == "__main__":
    sys.exit(main())
