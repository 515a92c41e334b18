"""`--ray`: actors of a Ray cluster answer the rows of a run, and write whole files themselves."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from queue import SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

from pgcli.checkpoints.weight_files import total_bytes
from pgcli.errors import NoUsableDevice
from pgcli.pipeline.progress.tally import Error, Tally
from pgcli.pipeline.rows import FILE_ROWS, range_rows, row_schema, split_rows
from pgcli.pipeline.state.forms import open_parts
from pgcli.pipeline.state.parts_form import PartsForm
from pgcli.pipeline.state.record import read_record
from pgcli.pipeline.task import find_checkpoints
from pgcli.pipeline.workers.engine import EngineTask, answer_works, rows_of_task
from pgcli.pipeline.workers.engine_process import EngineDied, EngineFailed
from pgcli.pipeline.workers.engines import POLL_SECONDS, RowsLost, Workers
from pgcli.pipeline.workers.slots import SINGLE_THREAD_BYTES, EngineSlot
from pgcli.pipeline.workers.work import EngineInfo, EngineMessage, RowsAnswered, Work, WorkQueue
from pgcli.printable import first_line
from pgcli.stores import open_folder

if TYPE_CHECKING:
    from pgcli.inputs.stamps import Stamp
    from pgcli.pipeline.output import RunOutput
    from pgcli.pipeline.progress.run_progress import RunProgress
    from pgcli.pipeline.request import RunRequest
    from pgcli.pipeline.rows import RunRows

LOOK_SECONDS = 2.0  # between two looks at the nodes, and at what there is room for
CONNECT_SECONDS = 5.0
NOTE_SECONDS = 30.0  # without an actor that is loaded, before a message says what is asked for
#: After so long without a word of the cluster it is lost. After a minute, Ray itself would end this
#: process with exit code 1.
SILENT_SECONDS = 40.0
#: The cores for an engine on a CPU whose model is not small.
LARGE_MODEL_CPUS = 8
#: Resources of Ray that say how many actors fit.
GPU, CPU = "GPU", "CPU"


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
    """A process of the cluster with a model of its own. Ray keeps no order of calls to it."""

    def __init__(self, task: EngineTask):
        self._task = task
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._early: dict[int, Work | None] = {}  # what came before its turn, by its number
        self._taken = 0
        self._works, self._messages = SimpleQueue[Any](), SimpleQueue[Any]()
        self._given = deque[Work]()  # in the order of their rows, which come in order
        self._part: list[RowsAnswered] = []  # of the file that the actor will write
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, number: int, work: Work | None) -> None:
        """Take the work of this number, counted from 0, after those before it; None: no more."""
        with self._lock:
            self._early[number] = work
            while self._taken in self._early:
                self._works.put(self._early.pop(self._taken))
                self._taken += 1

    def stop(self) -> None:
        """Finish the rows in progress only."""
        self._stop.set()
        self._works.put(None)

    def messages(self) -> list[EngineMessage | EngineFailed | None]:
        """What has come since the last call, at least one message; None is the last."""
        messages = [self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages

    def _run(self) -> None:
        """Answer works until there are no more.

        The answered rows of a file that is not complete when the run is to stop go to the program.
        """
        try:
            os.chdir(self._task.request.folder)
            self._rows = rows_of_task(self._task)
            answer_works(self._task, self._rows, self._take(), self._stop.is_set, self._send)
            for message in (*self._part, None):
                self._messages.put(message)
        except Exception as error:  # noqa: BLE001 - the program raises it
            self._messages.put(EngineFailed(error, traceback.format_exc()))

    def _take(self) -> Iterator[Work]:
        for work in iter(self._works.get, None):
            self._given.append(work)
            yield work

    def _send(self, message: EngineMessage) -> None:
        """Send a message; of a file that is written, one for all of its rows."""
        if isinstance(message, RowsAnswered):
            work = self._given[0]
            is_last = message.rows.stop == work.rows.stop
            if is_last:
                self._given.popleft()
            if work.is_part:
                self._part.append(message)
                if not is_last:
                    return
                message = write_part(self._task, self._rows, work.rows, self._part)
                self._part = []
        self._messages.put(message)


def write_part(
    task: EngineTask, rows: RunRows, numbers: range, answered: Sequence[RowsAnswered]
) -> RowsAnswered:
    """Write the file that has these answered rows. Raises OutputFailed and OutputExists."""
    request, record = task.request, read_record(open_folder(task.state))
    assert record is not None, "the run has begun, and knows its model"
    schema = row_schema(request, rows.inventory.kept, exact=True)
    tally, failed, stamps = Tally(), list[Error](), dict[int, "Stamp | None"]()
    for message in answered:
        tally.add(message.counts, message.errors)
        failed += message.errors
        stamps |= message.stamps

    def lines(start: int, stop: int) -> Iterator[bytes]:
        assert range(start, stop) == numbers
        return chain.from_iterable(message.lines or () for message in answered)

    parts = open_parts(request.output.output, record, schema, rows.kept)
    parts.write(numbers.start // record.file_rows, numbers.stop, lines, Counter(tally.errors))
    limits = answered[-1].limits
    return RowsAnswered(numbers.start, None, tally.counts, failed, stamps, limits)


class RayEngine:
    """An actor of a run. Closing it ends it."""

    def __init__(self, cluster: Cluster, actor: Any):
        self._cluster, self._actor = cluster, actor
        self._given = 0
        self.is_loaded = False
        #: The messages that have come, and the call that returns the next ones.
        self.came: deque[Any] = deque()
        self.reply = actor.messages.remote()

    def send(self, work: Work | None) -> None:
        if work is None and not self.is_loaded:
            self.came.append(None)  # Ray may never have room for it
            return
        self._actor.give.remote(self._given, work)
        self._given += 1

    def stop(self) -> None:
        if self.is_loaded:
            self._actor.stop.remote()
        else:
            self.came.append(None)

    def receive(self) -> Any:
        if not self.came:
            self.came.extend(self._cluster.get(self.reply))
            if self.came[-1] is not None:
                self.reply = self._actor.messages.remote()
        message = self.came.popleft()
        self.is_loaded |= isinstance(message, EngineInfo)
        return message

    def close(self) -> None:
        self._cluster.kill(self._actor)


class RayEngines(Workers[RayEngine]):
    """Actors of a cluster, as many as there is room for.

    Ray does not restart them. As many more are requested than fit, so that a cluster that grows on
    demand does.
    """

    hint = "fewer <--engines=> need less memory; the logs of Ray show more"

    def __init__(self, output: RunOutput, ranges: Sequence[range], progress: RunProgress):
        request, rows = output.request, output.rows
        size, file_rows = range_rows(sum(map(len, ranges))), output.record.file_rows
        works, per_item = works_of(output, ranges), rows.per_item or 1
        queue = WorkQueue(works, workers=1, size=size, per_item=per_item)
        super().__init__(queue, progress.should_stop)
        self._work_rows = file_rows if file_rows <= FILE_ROWS else size
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
        """Request actors: twice as many as fit on the cluster as it is."""
        if not self._queue or monotonic() < self._grows_at:
            return
        self._grows_at = monotonic() + LOOK_SECONDS
        request, resources = self._task.request, self._resources
        fitting = sum(map(resources.fits, self._cluster.resources()))
        useful = -(-self._queue.remaining // self._work_rows)
        most = min(request.model.engines or useful, useful, fitting + max(1, fitting))
        slot = EngineSlot(max(1, int(resources.cpus)), request.model.device)
        task = replace(self._task, slot=slot)
        for _ in range(len(self.ahead), most):
            self.add(RayEngine(self._cluster, self._cluster.actor(Actor, resources, task)))
        self._queue.workers = max(1, min(len(self.ahead), fitting))
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
        if worker.is_loaded or not self._queue:
            super()._feed(worker)

    def _replace(self, worker: RayEngine, how: str) -> Iterator[RowsLost]:
        if worker.is_loaded:  # its last messages are lost with it
            self._queue.begun_first(worker)
        yield from super()._replace(worker, how)

    def _say_shortage(self) -> None:
        if any(engine.is_loaded for engine in self.ahead):
            self._says_at = monotonic() + NOTE_SECONDS
        elif monotonic() >= self._says_at:
            self._says_at += 10**9
            shortage = self._resources.shortage(self._cluster.resources())
            self._progress.say(
                f"no engine is loaded after {NOTE_SECONDS:.0f} s: {shortage}; still waiting"
            )


def works_of(output: RunOutput, ranges: Sequence[range]) -> Iterator[Work]:
    """Some rows as works: one for each file of which all rows are missing, and the others."""
    form, total, size = output.form, output.rows.total or 0, output.record.file_rows
    assert isinstance(form, PartsForm), "--ray is for folders"
    for rows in chain.from_iterable(split_rows(missing, size) for missing in ranges):
        first = rows.start // size * size
        file = range(first, min(first + size, total))
        # an actor has the rows of a file in memory; and only the owner changes a file that is there
        is_part = rows == file and len(rows) <= FILE_ROWS and form.end_of(first // size) == first
        yield Work(rows, is_part=is_part)


def resources_of(request: RunRequest, has_gpus: bool) -> Resources:
    """What each actor takes of the cluster."""
    gpus = float(has_gpus and request.model.device != "cpu")
    checkpoint, _ = find_checkpoints(request)
    is_small = total_bytes(checkpoint.folder) < SINGLE_THREAD_BYTES
    return Resources(gpus, 1 if gpus or is_small else LARGE_MODEL_CPUS)


class Cluster:
    """The cluster at an address, as one command uses it.

    A thread asks Ray for the nodes again and again: where the cluster's head is gone the call
    hangs, and where the node of this command is gone all others go on hanging without an error.
    """

    def __init__(self, address: str):
        self._ray, self._address = connect(address), address
        self._node = self._ray.get_runtime_context().get_node_id()
        self._nodes: list[dict[str, Any]] = self._ray.nodes()
        self._seen = monotonic()
        self._has_left = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def resources(self) -> list[dict[str, float]]:
        """The resources of each node that runs."""
        return [node["Resources"] for node in self._nodes if node["Alive"]]

    def check(self) -> None:
        """Raise NoUsableDevice if the cluster is lost."""
        if not any(node["Alive"] for node in self._nodes if node["NodeID"] == self._node):
            raise self._lost("the node that this command is connected to has died")
        if monotonic() - self._seen > SILENT_SECONDS:
            raise self._lost(f"it has not answered for {SILENT_SECONDS:.0f} s")

    def actor(self, kind: type, resources: Resources, *arguments: Any) -> Any:
        """An actor that is requested; Ray starts it once there is room."""
        options = {
            "num_gpus": resources.gpus,
            "num_cpus": resources.cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 3,  # `messages` waits, meanwhile `give` and `stop` are called
        }
        return self._ray.remote(kind).options(**options).remote(*arguments)

    def wait(self, calls: list[Any]) -> list[Any]:
        """The calls that have ended, after at most POLL_SECONDS. Raises NoUsableDevice."""
        if not calls:
            sleep(POLL_SECONDS)
            return []
        ended, _ = self._call(self._ray.wait, calls, timeout=POLL_SECONDS)
        if ended:  # one of them; all that have ended
            ended, _ = self._call(self._ray.wait, calls, num_returns=len(calls), timeout=0)
        return list(ended)

    def get(self, call: Any) -> Any:
        """What a call has returned. Raises EngineDied, and what the actor raised."""
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
        """End the connection; a cluster of this command alone ends."""
        self._has_left.set()
        self._ray.shutdown()

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What the function returns. Raises what a signal raises, which Ray hides."""
        try:
            return function(*arguments, **options)
        except SystemError as problem:
            raise problem.__cause__ or problem from None
        except ConnectionError as problem:  # of ray://
            raise self._lost(first_line(problem)) from problem

    def _look(self) -> None:
        while not self._has_left.wait(LOOK_SECONDS):
            with suppress(Exception):  # no answer is no answer
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
    except Exception as problem:  # of a node that starts too slowly, it is no other
        raise NoUsableDevice(
            f"there is no Ray cluster at {address}: {first_line(problem)}",
            hint="start one with ray start --head, or use <--ray local>",
        ) from problem
    if is_main:  # Ray has put a handler of its own in its place
        signal.signal(signal.SIGTERM, on_terminate)
    return ray


def check_address(address: str) -> None:
    """Raise OSError if nothing listens at `HOST:PORT`, for which Ray itself would wait for ever."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
