"""Simulates a run on thousands of GPUs: the code that divides chunks, with engines that only wait.

    .venv/bin/python benchmarks/cluster_simulation.py --chunk-rows 1000 2500 10000

Speeds of engines have a heavy tail, machines fail or are preempted and are replaced, and models
take time to load. Printed are the time of the run, and its shares: of the images that engines could
have answered while they were loaded, and of the time that would suffice if no engine had to be
loaded and no machine failed; then the work that ended with its engine, and what the driver needs.
"""

from __future__ import annotations

import argparse
import heapq
import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgcli.cluster.chunk_driver import ChunkDriver, Ended, Event, Returned

#: Files that are read, written, linked, removed or listed for a chunk.
FILE_OPERATIONS = 12


@dataclass(frozen=True)
class Cluster:
    """What is simulated; times are in seconds, rates are for a machine and an hour."""

    machines: int = 1000
    gpus: int = 8
    images: int = 10**9
    images_per_second: float = 100.0  # of an engine
    slow_share: float = 0.01  # of engines, at a third of the speed
    spread: float = 0.1  # sigma of the logarithm of speeds
    failures: float = 0.02
    preemptions: float = 0.1
    replacement: float = 300.0
    loading: float = 60.0
    call: float = 0.05  # between two chunks of an engine
    seed: int = 0


class SimulatedFleet:
    """Engines on machines that end; time passes from event to event."""

    def __init__(self, cluster: Cluster, chunk_rows: int):
        self.cluster, self.chunk_rows = cluster, chunk_rows
        self.now = self.lost = self.offered = 0.0
        self._random = random.Random(cluster.seed)
        self._heap: list[tuple[float, int, Any]] = []
        self._events: list[Event] = []
        self._machine_of: dict[int, int] = {}
        self._speeds: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._busy_since: dict[int, float] = {}
        self._count = 0
        for machine in range(cluster.machines):
            self._start(machine)
        self.ideal_seconds = cluster.images / sum(self._speeds.values())

    @property
    def size(self) -> int:
        return len(self._machine_of)

    def grow(self, most: int) -> None:
        """Machines start their engines themselves."""

    def call(self, engine: int, method: str, *args: Any) -> None:
        cluster = self.cluster
        seconds = cluster.loading if method == "load" else cluster.call
        if method in ("run", "answer"):
            rows = self.chunk_rows if method == "run" else len(args[0])
            seconds += rows / self._speeds[engine] * self._random.lognormvariate(0, 0.05)
            self._busy_since[engine] = self.now
        self._push(seconds, (engine, args[0] if method in ("run", "store") else []))

    def events(self) -> Sequence[Event]:
        while not self._events:
            self.now, _, found = heapq.heappop(self._heap)
            if isinstance(found, int):
                self._end(found)
            elif callable(found):
                found()
            elif found[0] in self._machine_of:
                engine = found[0]
                if engine not in self._since:  # it is loaded
                    self._since[engine] = self.now
                self._busy_since.pop(engine, None)
                return [Returned(engine, found[1])]
        events, self._events = self._events, []
        return events

    def discard(self, engine: int) -> None:
        """No engine is discarded."""

    def close(self) -> None:
        for engine, since in self._since.items():
            self.offered += (self.now - since) * self._speeds[engine]

    def _start(self, machine: int) -> None:
        cluster = self.cluster
        for _ in range(cluster.gpus):
            engine, self._count = self._count, self._count + 1
            self._machine_of[engine] = machine
            speed = cluster.images_per_second * self._random.lognormvariate(0, cluster.spread)
            is_slow = self._random.random() < cluster.slow_share
            self._speeds[engine] = speed / 3 if is_slow else speed
            self.call(engine, "load")
        per_second = (cluster.failures + cluster.preemptions) / 3600
        if per_second:
            self._push(self._random.expovariate(per_second), machine)

    def _end(self, machine: int) -> None:
        for engine in [engine for engine, on in self._machine_of.items() if on == machine]:
            del self._machine_of[engine]
            if engine in self._since:
                alive = self.now - self._since.pop(engine)
                self.offered += alive * self._speeds[engine]
            if engine in self._busy_since:
                self.lost += (self.now - self._busy_since.pop(engine)) * self._speeds[engine]
            self._events.append(Ended(engine, "preempted"))
        self._push(self.cluster.replacement, lambda: self._start(machine))

    def _push(self, seconds: float, found: Any) -> None:
        self._count_pushed = getattr(self, "_count_pushed", 0) + 1
        heapq.heappush(self._heap, (self.now + seconds, self._count_pushed, found))


class AllClaims:
    """All chunks, for one driver."""

    def __init__(self, count: int):
        self._next, self._count, self.left = 0, count, count

    def claim(self, count: int = 1, *, spare: int = 0) -> list[int]:
        if self._count - self._next <= spare:
            return []
        first, self._next = self._next, min(self._next + count, self._count)
        return list(range(first, self._next))


@dataclass(frozen=True)
class Outcome:
    """What a simulated run took."""

    seconds: float
    efficiency: float
    of_ideal: float
    lost: float
    file_operations_per_second: float
    driver_seconds: float
    chunks: int


def simulate(cluster: Cluster, chunk_rows: int) -> Outcome:
    """Run the driver on the cluster until every chunk is stored."""
    began = time.process_time()
    fleet = SimulatedFleet(cluster, chunk_rows)
    claims = AllClaims(-(-cluster.images // chunk_rows))
    chunks, stored = claims.left, bytearray(claims.left)

    def split(number: int) -> list[range]:
        return [
            range(row, row + 1) for row in range(number * chunk_rows, (number + 1) * chunk_rows)
        ]

    driver = ChunkDriver(fleet, claims, split, lambda value: None)
    for number in driver.reports():
        assert not stored[number], "a chunk is stored twice"
        stored[number] = 1
        claims.left -= 1
    assert all(stored), "a chunk is lost"
    return Outcome(
        fleet.now,
        cluster.images / fleet.offered,
        fleet.ideal_seconds / fleet.now,
        fleet.lost / cluster.images,
        FILE_OPERATIONS * chunks / fleet.now,
        time.process_time() - began,
        chunks,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", type=int, default=Cluster.machines)
    parser.add_argument("--images", type=int, default=Cluster.images)
    parser.add_argument("--images-per-second", type=float, default=Cluster.images_per_second)
    parser.add_argument("--chunk-rows", type=int, nargs="+", default=[1000, 2500, 10_000])
    given = vars(parser.parse_args())
    sizes = given.pop("chunk_rows")
    print("rows in a chunk  chunks     time  of capacity  of ideal  work lost  file op/s  CPU")
    for rows in sizes:
        found = simulate(Cluster(**given), rows)
        print(
            f"{rows:15,} {found.chunks:7,} {found.seconds:6,.0f} s {found.efficiency:11.1%} "
            f"{found.of_ideal:9.1%} {found.lost:10.2%} "
            f"{found.file_operations_per_second:10,.0f} {found.driver_seconds:4.0f} s"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory of driver and simulation: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
