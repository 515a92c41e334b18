"""Engines as actors of a Ray cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import Any

from pgcli.cluster.chunk_driver import Ended, Event, Raised, Returned
from pgcli.errors import NoUsableDevice
from pgcli.printable import first_line

WAIT_SECONDS = 1.0
GROW_SECONDS = 2.0  # between two looks at what there is room for
CONNECT_SECONDS = 5.0
NOTE_SECONDS = 30.0  # without an engine that is loaded, before a message says what is asked for
#: A resource of Ray that says how many such engines fit.
GPU, CPU = "GPU", "CPU"


@dataclass(frozen=True, slots=True)
class EngineResources:
    """What Ray reserves for an engine."""

    gpus: float
    cpus: float

    def fits(self, node: dict[str, float]) -> int:
        """How many engines fit on a node with these resources in all."""
        counts = [
            node.get(name, 0.0) / amount
            for name, amount in ((GPU, self.gpus), (CPU, self.cpus))
            if amount
        ]
        return int(min(counts) + 1e-6)

    def shortage(self, nodes: Sequence[dict[str, float]]) -> str:
        """What an engine takes, and what these nodes have in all."""
        gpus, cpus = (sum(node.get(name, 0.0) for node in nodes) for name in (GPU, CPU))
        return (
            f"each takes {self.gpus:g} GPUs and {self.cpus:g} cores of a machine, and the cluster "
            f"has {gpus:g} GPUs and {cpus:g} cores"
        )


class EngineActor:
    """The process of an engine in the cluster: an object that `make` returns there."""

    def __init__(self, make: Callable[[], Any]):
        self._engine = make()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._engine, method)(*args)


class RayFleet:
    """Actors on the cluster at an address, each with an engine.

    Actors are not restarted by Ray: whoever drives the engines counts their ends. As many more are
    requested than there are, so that a cluster that grows on demand does. `resources` says what an
    engine takes, given whether the cluster has GPUs, and `make` a function that makes it. `say`
    shows a message, such as that there is no engine after NOTE_SECONDS.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[EngineResources], Callable[[], Any]],
        resources: Callable[[bool], EngineResources],
        say: Callable[[str], None],
    ):
        self._ray = connect(address)
        self.resources = resources(any(node.get(GPU) for node in self._nodes()))
        self._make = make(self.resources)
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # by the reference of the value to come
        self._say, self._says_at = say, monotonic() + NOTE_SECONDS
        self._next = 0
        self._grows_at = 0.0

    @property
    def size(self) -> int:
        """The number of actors, with those that are requested."""
        return len(self._actors)

    def grow(self, most: int) -> None:
        """Request actors: twice as many as fit on the cluster as it is, `most` in all."""
        if monotonic() < self._grows_at:
            return
        self._grows_at = monotonic() + GROW_SECONDS
        fitting = sum(self.resources.fits(node) for node in self._nodes())
        options = {
            "num_gpus": self.resources.gpus,
            "num_cpus": self.resources.cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        while len(self._actors) < min(most, fitting + max(1, fitting)):
            remote = self._ray.remote(EngineActor)
            number, self._next = self._next, self._next + 1
            self._actors[number] = remote.options(**options).remote(self._make)
            self.call(number, "load")

    def call(self, engine: int, method: str, *args: Any) -> None:
        """Call a method of an actor."""
        self._calls[self._actors[engine].call.remote(method, *args)] = engine

    def events(self) -> Sequence[Event]:
        """The calls that have ended."""
        ray = self._ray
        if not self._calls:
            sleep(WAIT_SECONDS / 5)
            return []
        ready, _ = ray.wait(list(self._calls), timeout=WAIT_SECONDS)
        if monotonic() >= self._says_at:
            self._says_at = inf
            seconds = f"{NOTE_SECONDS:.0f} s"
            shortage = self.resources.shortage(self._nodes())
            self._say(f"no engine is loaded after {seconds}: {shortage}; still waiting")
        if ready:  # and all others that are
            count = len(self._calls)
            ready, _ = ray.wait(list(self._calls), num_returns=count, timeout=0)
        return [self._event(reference) for reference in ready]

    def _event(self, reference: Any) -> Event:
        ray, engine = self._ray, self._calls.pop(reference)
        try:
            value = ray.get(reference)
            self._says_at = inf
            return Returned(engine, value)
        except ray.exceptions.RayTaskError as problem:
            cause = problem.cause if isinstance(problem.cause, BaseException) else problem
            return Raised(engine, cause)
        except ray.exceptions.RayError as problem:
            self.discard(engine)
            return Ended(engine, first_line(problem))

    def discard(self, engine: int) -> None:
        """End an actor."""
        with suppress(Exception):  # it has ended
            self._ray.kill(self._actors.pop(engine))

    def close(self) -> None:
        """End all actors and leave the cluster."""
        for engine in list(self._actors):
            self.discard(engine)
        self._ray.shutdown()

    def _nodes(self) -> list[dict[str, float]]:
        """The resources of each node that runs."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def connect(address: str) -> Any:
    """The module `ray`, connected to the cluster. Raises NoUsableDevice."""
    try:
        check_address(address)
        import ray

        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            include_dashboard=False if address == "local" else None,
        )
    except Exception as problem:  # of a node that starts too slowly, it is no other
        raise NoUsableDevice(
            f"there is no Ray cluster at {address}: {first_line(problem)}",
            hint="start one with ray start --head, or use --ray local",
        ) from problem
    return ray


def check_address(address: str) -> None:
    """Raise OSError if nothing listens at `HOST:PORT`, for which Ray itself would wait for ever."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
