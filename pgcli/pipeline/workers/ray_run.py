"""`--ray`: actors of a Ray cluster compute the chunks of a run and save them in its output."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.weight_files import total_bytes
from pgcli.errors import NoUsableDevice
from pgcli.pipeline.task import find_checkpoints
from pgcli.pipeline.workers.slots import SINGLE_THREAD_BYTES, EngineSlot
from pgcli.pipeline.workers.worker import Deaths, EngineLoaded, EngineTask, Report, compute
from pgcli.printable import first_line

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest
    from pgcli.pipeline.run import Run

WAIT_SECONDS = 0.5
GROW_SECONDS = 2.0  # between two looks at what there is room for
CONNECT_SECONDS = 5.0
NOTE_SECONDS = 30.0  # without an actor that is loaded, before a message says what is asked for
#: The cores for an engine on a CPU whose model is not small.
LARGE_MODEL_CPUS = 8
#: Resources of Ray that say how many actors fit.
GPU, CPU = "GPU", "CPU"


def run_on_ray(run: Run) -> None:
    """Have actors compute the missing chunks; each saves its rows in the output itself.

    Actors are not restarted by Ray: another one takes over the chunk of one that has died. As many
    more are requested than there are, so that a cluster that grows on demand does. Raises what an
    actor raises, and NoUsableDevice.
    """
    address = run.request.model.ray
    assert address is not None
    fleet = Fleet(connect(address), run)
    try:
        with run.progress.answering():
            fleet.follow()
    finally:
        fleet.close()


@dataclass(frozen=True, slots=True)
class Resources:
    """What Ray reserves for an actor."""

    gpus: float
    cpus: float

    def fits(self, node: dict[str, float]) -> int:
        """How many actors fit on a node with these resources in all."""
        counts = [
            node.get(name, 0.0) / amount
            for name, amount in ((GPU, self.gpus), (CPU, self.cpus))
            if amount
        ]
        return int(min(counts) + 1e-6)

    def shortage(self, nodes: Sequence[dict[str, float]]) -> str:
        """What an actor takes, and what these nodes have in all."""
        gpus, cpus = (sum(node.get(name, 0.0) for node in nodes) for name in (GPU, CPU))
        return (
            f"each takes {self.gpus:g} GPUs and {self.cpus:g} cores of a machine, and the cluster "
            f"has {gpus:g} GPUs and {cpus:g} cores"
        )


class Actor:
    """A process of the cluster with a model of its own."""

    def __init__(self, task: EngineTask):
        self._task, self._stop = task, threading.Event()

    def work(self) -> Iterator[EngineLoaded | Report]:
        """Load the model and compute chunks; what is done is reported."""
        os.chdir(self._task.request.folder)
        yield from compute(self._task, self._stop.is_set)

    def stop(self) -> None:
        """Finish the rows in progress only."""
        self._stop.set()


class Fleet:
    """The actors of a run."""

    def __init__(self, ray: Any, run: Run):
        self._ray, self._run = ray, run
        self._resources = resources_of(run.request, any(node.get(GPU) for node in self._nodes()))
        self._actors: dict[Any, Any] = {}  # by the stream of reports
        self._deaths = Deaths("fewer --engines need less memory; the logs of Ray show more")
        self._grows_at, self._says_at = 0.0, monotonic() + NOTE_SECONDS
        self._is_stopping = self._is_ending = False

    def follow(self) -> None:
        """Follow actors until all chunks are complete, whoever computed them."""
        while self._is_growing or self._actors:
            self._request_stop()
            if self._is_growing:
                self._grow()
            if not self._actors:
                sleep(WAIT_SECONDS)
                continue
            ready, _ = self._ray.wait(list(self._actors), timeout=WAIT_SECONDS)
            self._say_shortage()
            for stream in ready:
                self._receive(stream)

    @property
    def _is_growing(self) -> bool:
        """Whether further actors may find a chunk: of one that has ended there was none left."""
        is_done = self._is_stopping or self._is_ending
        return not is_done and bool(self._run.output.missing())

    def close(self) -> None:
        """End all actors and leave the cluster."""
        for stream in list(self._actors):
            self._discard(stream)
        self._ray.shutdown()

    def _receive(self, stream: Any) -> None:
        ray, run = self._ray, self._run
        try:
            message = ray.get(next(stream))
        except StopIteration:
            self._is_ending = True  # no chunk is left
            self._discard(stream)
            return
        except ray.exceptions.RayTaskError as problem:
            cause = problem.cause if isinstance(problem.cause, BaseException) else problem
            raise cause from problem
        except ray.exceptions.RayError as problem:
            self._discard(stream)
            if not self._is_stopping:
                self._is_ending = False
                self._deaths.add(first_line(problem), len(self._actors))
            return
        self._says_at = inf
        if isinstance(message, Report):
            self._deaths.reset()
            run.on_report(message)
        else:
            run.on_engine(message.info)

    def _grow(self) -> None:
        """Request actors: twice as many as fit on the cluster as it is."""
        if monotonic() < self._grows_at:
            return
        self._grows_at = monotonic() + GROW_SECONDS
        run = self._run
        fitting = sum(self._resources.fits(node) for node in self._nodes())
        chunks = -(-sum(map(len, run.output.missing())) // run.output.record.chunk_rows)
        most = min(run.request.model.engines or chunks, chunks, fitting + max(1, fitting))
        options = {
            "num_gpus": self._resources.gpus,
            "num_cpus": self._resources.cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 2,  # work and stop
        }
        slot = EngineSlot(max(1, int(self._resources.cpus)), run.request.model.device)
        while len(self._actors) < most:
            remote = self._ray.remote(Actor).options(**options)
            actor = remote.remote(EngineTask(run.request, slot))
            stream = actor.work.options(num_returns="streaming").remote()
            self._actors[stream] = actor
        run.summary.engines = max(run.summary.engines, min(len(self._actors), fitting))

    def _request_stop(self) -> None:
        if not self._is_stopping and self._run.progress.should_stop():
            self._is_stopping = True
            for actor in self._actors.values():
                actor.stop.remote()

    def _say_shortage(self) -> None:
        if monotonic() >= self._says_at:
            self._says_at = inf
            shortage = self._resources.shortage(self._nodes())
            self._run.progress.say(
                f"no engine is loaded after {NOTE_SECONDS:.0f} s: {shortage}; still waiting"
            )

    def _discard(self, stream: Any) -> None:
        """End an actor."""
        with suppress(Exception):  # it has ended
            self._ray.kill(self._actors.pop(stream))

    def _nodes(self) -> list[dict[str, float]]:
        """The resources of each node that runs."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def resources_of(request: RunRequest, has_gpus: bool) -> Resources:
    """What each actor takes of the cluster, by the options or by what there is."""
    model = request.model
    uses_gpus = has_gpus and model.device != "cpu"
    gpus = float(uses_gpus) if model.ray_gpus is None else model.ray_gpus
    checkpoint, _ = find_checkpoints(request)
    is_small = total_bytes(checkpoint.folder) < SINGLE_THREAD_BYTES
    return Resources(gpus, model.ray_cpus or (1 if gpus or is_small else LARGE_MODEL_CPUS))


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
