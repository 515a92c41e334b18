"""`--ray`: actors of a Ray cluster answer the rows of a run."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

from pgcli.checkpoints.files import total_bytes
from pgcli.errors import NoUsableDevice
from pgcli.run.input_rows import range_rows
from pgcli.run.model import find_checkpoints
from pgcli.run.workers.engine import EngineTask, answer_works, rows_of_task
from pgcli.run.workers.engine_process import EngineDied, EngineFailed
from pgcli.run.workers.engines import POLL_SECONDS, RowsLost, Workers
from pgcli.run.workers.work import SINGLE_THREAD_BYTES, EngineMessage, EngineSlot, Work, WorkQueue
from pgcli.text import first_line

if TYPE_CHECKING:
    from pgcli.run.progress import RunProgress
    from pgcli.run.request import RunRequest
    from pgcli.run.run_output import RunOutput

LOOK_SECONDS = 2.0  # between two checks of the nodes and their resources
CONNECT_SECONDS = 5.0
NOTE_SECONDS = 30.0  # without a loaded actor, before a message names the requested resources
#: A cluster that has not answered for so long is lost. After a minute, Ray itself would end this
#: process with exit code 1.
SILENT_SECONDS = 40.0
#: The cores for an engine with a large model on a CPU.
LARGE_MODEL_CPUS = 8
#: Names of Ray's resources.
GPU, CPU = "GPU", "CPU"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that Ray reserves for an actor."""

    gpus: float
    cpus: float

    def fits(self, node: dict[str, float]) -> int:
        """The number of actors that fit on a node with these resources."""
        counts = [
            node.get(name, 0.0) / amount
            for name, amount in ((GPU, self.gpus), (CPU, self.cpus))
            if amount
        ]
        return int(min(counts) + 1e-6)


class Actor:
    """A process of the cluster with its own model. Ray does not keep the order of calls to it."""

    def __init__(self, task: EngineTask):
        self._task = task
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._early: dict[int, Work | None] = {}  # received before their turn, by number
        self._taken = 0
        self._works, self._messages = SimpleQueue[Any](), SimpleQueue[Any]()
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, number: int, work: Work | None) -> None:
        """Take the work of this number, counted from 0, in order; None means that no more come."""
        with self._lock:
            self._early[number] = work
            while self._taken in self._early:
                self._works.put(self._early.pop(self._taken))
                self._taken += 1

    def stop(self) -> None:
        """Finish only the rows in progress."""
        self._stop.set()
        self._works.put(None)

    def messages(self) -> list[EngineMessage | EngineFailed | None]:
        """The messages since the last call, at least one; None is the last."""
        messages = [self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages

    def _run(self) -> None:
        """Answer works until there are no more."""
        try:
            os.chdir(self._task.request.folder)
            rows, works = rows_of_task(self._task), iter(self._works.get, None)
            answer_works(self._task, rows, works, self._stop.is_set, self._messages.put)
            self._messages.put(None)
        except Exception as error:  # noqa: BLE001 - the program raises it
            self._messages.put(EngineFailed(error, traceback.format_exc()))


class RayEngine:
    """An actor of a run. Closing it ends it."""

    def __init__(self, cluster: Cluster, actor: Any):
        self._cluster, self._actor = cluster, actor
        self._given = 0
        #: The received messages, and the call that returns the next ones.
        self.came: deque[Any] = deque()
        self.reply = actor.messages.remote()

    def send(self, work: Work | None) -> None:
        self._actor.give.remote(self._given, work)
        self._given += 1

    def stop(self) -> None:
        self._actor.stop.remote()

    def receive(self) -> Any:
        if not self.came:
            self.came.extend(self._cluster.get(self.reply))
            if self.came[-1] is not None:
                self.reply = self._actor.messages.remote()
        return self.came.popleft()

    def close(self) -> None:
        self._cluster.kill(self._actor)


class RayEngines(Workers):
    """Actors of a cluster, as many as fit.

    Ray does not restart them. Twice as many as fit are requested, so that an autoscaling cluster
    scales up.
    """

    hint = "fewer <--engines=> need less memory; the logs of Ray show more"

    def __init__(self, output: RunOutput, ranges: Sequence[range], progress: RunProgress):
        request, rows = output.request, output.rows
        queue = WorkQueue(
            map(Work, ranges),
            workers=1,
            size=min(range_rows(sum(map(len, ranges))), output.record.file_rows),
            per_item=rows.per_item or 1,
        )
        super().__init__(queue, progress.should_stop)
        url, schema = output.state.store.url, output.line_schema
        self._task = EngineTask(request, EngineSlot(1), url, schema)
        self._progress = progress
        self._cluster = Cluster(cast("str", request.model.ray))
        self._grows_at, self._says_at = 0.0, monotonic() + NOTE_SECONDS
        self._resources = resources_of(
            request, any(node.get(GPU) for node in self._cluster.resources())
        )

    def messages(self) -> Generator[EngineMessage | RowsLost]:
        try:
            yield from super().messages()
        finally:
            self._cluster.leave()

    def start(self) -> None:
        """Request actors: twice as many as fit on the cluster now."""
        if not self.queue or monotonic() < self._grows_at:
            return
        self._grows_at = monotonic() + LOOK_SECONDS
        request, resources = self._task.request, self._resources
        fitting = sum(map(resources.fits, self._cluster.resources()))
        useful = -(-self.queue.remaining // self.queue.size)
        most = min(request.model.engines or useful, useful, fitting + max(1, fitting))
        slot = EngineSlot(max(1, int(resources.cpus)), request.model.device)
        task = replace(self._task, slot=slot)
        for _ in range(len(self.ahead), most):
            self.add(RayEngine(self._cluster, self._cluster.actor(Actor, resources, task)))
        self.queue.workers = max(1, min(len(self.ahead), fitting))
        summary = self._progress.summary
        summary.engines = max(summary.engines, min(len(self.ahead), fitting))

    def ready(self) -> Iterator[RayEngine]:
        self._cluster.check()
        self._say_shortage()
        if not any(engine.came for engine in self.ahead):
            replies = {engine.reply: engine for engine in self.ahead}
            for reply in self._cluster.wait(list(replies)):
                yield replies[reply]
        for engine in list(self.ahead):
            while engine.came:
                yield engine

    def _feed(self, worker: RayEngine) -> None:
        """Give an actor rows once it is loaded: the cluster may never have room for it."""
        if worker in self._loaded:
            super()._feed(worker)
        elif not self.queue and not worker.came:
            worker.came.append(None)  # Ray may never start it

    def _replace(self, worker: RayEngine, how: str) -> Iterator[RowsLost]:
        if worker in self._loaded:  # its last messages are lost
            self.queue.begun_first(worker)
        yield from super()._replace(worker, how)

    def _say_shortage(self) -> None:
        if self._loaded.intersection(self.ahead):
            self._says_at = monotonic() + NOTE_SECONDS
        elif monotonic() >= self._says_at:
            self._says_at += 10**9
            gpus, cpus = self._resources.gpus, self._resources.cpus
            self._progress.say(
                f"no engine is loaded after {NOTE_SECONDS:.0f} s; still waiting for a machine with "
                f"{gpus:g} free GPUs and {cpus:g} free cores"
            )


def resources_of(request: RunRequest, has_gpus: bool) -> Resources:
    """The resources of each actor."""
    gpus = float(has_gpus and request.model.device != "cpu")
    checkpoint, _ = find_checkpoints(request)
    is_small = total_bytes(checkpoint.folder) < SINGLE_THREAD_BYTES
    return Resources(gpus, 1 if gpus or is_small else LARGE_MODEL_CPUS)


class Cluster:
    """A connection to the cluster at an address.

    A thread polls Ray for the nodes: this call hangs if the head node has died, and other calls
    hang without an error if the node of this command has died.
    """

    def __init__(self, address: str):
        self._ray, self._address = connect(address), address
        self._node = self._ray.get_runtime_context().get_node_id()
        self._nodes: list[dict[str, Any]] = self._ray.nodes()
        self._seen = monotonic()
        self._has_left = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def resources(self) -> list[dict[str, float]]:
        """The resources of each live node."""
        return [node["Resources"] for node in self._nodes if node["Alive"]]

    def check(self) -> None:
        """Raise NoUsableDevice if the cluster is lost."""
        if not any(node["Alive"] for node in self._nodes if node["NodeID"] == self._node):
            raise self._lost("the node that this command is connected to has died")
        if monotonic() - self._seen > SILENT_SECONDS:
            raise self._lost(f"it has not answered for {SILENT_SECONDS:.0f} s")

    def actor(self, kind: type, resources: Resources, *arguments: Any) -> Any:
        """A requested actor; Ray starts it once its resources are free."""
        options = {
            "num_gpus": resources.gpus,
            "num_cpus": resources.cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 3,  # `give` and `stop` are called while `messages` waits
        }
        return self._ray.remote(kind).options(**options).remote(*arguments)

    def wait(self, calls: list[Any]) -> list[Any]:
        """The calls that have returned, after at most POLL_SECONDS. Raises NoUsableDevice."""
        if not calls:
            sleep(POLL_SECONDS)
            return []
        ended, _ = self._call(self._ray.wait, calls, timeout=POLL_SECONDS)
        if ended:  # `wait` returns one; find all
            ended, _ = self._call(self._ray.wait, calls, num_returns=len(calls), timeout=0)
        return list(ended)

    def get(self, call: Any) -> Any:
        """The result of a call. Raises EngineDied, and the actor's exception."""
        errors = self._ray.exceptions
        try:
            return self._call(self._ray.get, call)
        except errors.RayTaskError as problem:
            cause = problem.cause if isinstance(problem.cause, BaseException) else problem
            raise cause from problem
        except errors.RayError as problem:
            raise EngineDied(first_line(problem)) from problem

    def kill(self, actor: Any) -> None:
        """End an actor."""
        with suppress(Exception):  # it has ended, or the cluster
            self._ray.kill(actor)

    def leave(self) -> None:
        """Disconnect; this ends a local cluster."""
        self._has_left.set()
        self._ray.shutdown()

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call the function. Raises the exception of a signal handler, which Ray wraps."""
        try:
            return function(*arguments, **options)
        except SystemError as problem:
            raise problem.__cause__ or problem from None
        except ConnectionError as problem:  # of ray://
            raise self._lost(first_line(problem)) from problem

    def _look(self) -> None:
        while not self._has_left.wait(LOOK_SECONDS):
            with suppress(Exception):  # a failed call counts as no answer
                self._nodes, self._seen = self._ray.nodes(), monotonic()

    def _lost(self, why: str) -> NoUsableDevice:
        return NoUsableDevice(
            f"the Ray cluster at {self._address} is lost: {why}",
            hint="once a cluster runs, the same command resumes",
        )


def connect(address: str) -> Any:
    """The module `ray`, connected to the cluster. Raises NoUsableDevice."""
    is_main = threading.current_thread() is threading.main_thread()
    on_terminate = signal.getsignal(signal.SIGTERM)
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
    except Exception as problem:  # Ray raises no narrower class for a node that starts slowly
        if address == "local":
            message = f"Ray does not start on this machine: {first_line(problem)}"
            hint = "run the same command again when other programs need less of the machine"
        else:
            message = f"there is no Ray cluster at {address}: {first_line(problem)}"
            hint = "start one with ray start --head, or use <--ray local>"
        raise NoUsableDevice(message, hint=hint) from problem
    if is_main:  # Ray has replaced the handler
        signal.signal(signal.SIGTERM, on_terminate)
    return ray


def check_address(address: str) -> None:
    """Raise OSError if nothing listens at `HOST:PORT`; Ray itself would wait forever."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
