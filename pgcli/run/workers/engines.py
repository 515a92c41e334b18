"""The workers of a run: start, feed, receive, and replace dead ones."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import TYPE_CHECKING, Any, TypeAlias

from pgcli.device.machine import decoding_processes, processors
from pgcli.errors import NoUsableDevice
from pgcli.images.pool import DEFAULT_WORKERS
from pgcli.run.progress import EngineInfo
from pgcli.run.request import RunRequest
from pgcli.run.state.record import differences
from pgcli.run.workers.engine import EngineTask
from pgcli.run.workers.engine_process import (
    EngineDied,
    EngineFailed,
    EngineProcess,
    start_method,
)
from pgcli.run.workers.work import (
    EngineMessage,
    EngineSlot,
    WorkBegun,
    WorkQueue,
    rows_ahead,
)

if TYPE_CHECKING:
    from pgcli.run.progress import RunProgress

#: An engine in another process: an EngineProcess or a RayEngine, with the same methods.
Engine: TypeAlias = Any

POLL_SECONDS = 0.2
#: A pause after all messages are read: waking up for each row would double this process's work.
PAUSE_SECONDS = 0.005
#: The most engines that may die in a row without an answered row between them.
MAX_DEATHS_IN_A_ROW = 8


@dataclass(frozen=True, slots=True)
class RowsLost:
    """The rows of an image that crashed too many workers."""

    rows: range


class Workers:
    """The workers of a run, which answer the rows of a queue."""

    hint = "fewer <--engines=> need less memory; <--engines 1> <--debug> shows more"

    def __init__(self, queue: WorkQueue, should_stop: Callable[[], bool]):
        self.queue, self._should_stop = queue, should_stop
        #: The running workers, with the number of rows to feed ahead to each.
        self.ahead: dict[Engine, int] = {}
        self._loaded: set[Engine] = set()
        self._ending: set[Engine] = set()  # they get no more rows
        self._deaths = 0  # since a row was answered
        self._first: EngineInfo | None = None
        self.is_stopping = False

    def start(self) -> None:
        """Start workers while there are free rows and resources."""
        raise NotImplementedError

    def ready(self) -> Iterator[Engine]:
        """The workers with a message, after at most POLL_SECONDS."""
        raise NotImplementedError

    def messages(self) -> Generator[EngineMessage | RowsLost]:
        """The messages of workers, until all rows are answered or the run stops.

        Raises the error of an engine, or NoUsableDevice if engines keep dying.
        """
        try:
            while self.ahead or (self.queue and not self.is_stopping):
                if not self.is_stopping and self._should_stop():
                    self.is_stopping = True
                    for worker in list(self.ahead):  # without a model it has no row in progress
                        worker.stop() if worker in self._loaded else self.remove(worker)
                if not self.is_stopping:
                    self.start()
                for worker in self.ready():
                    yield from self._receive(worker)
        finally:
            for worker in self.ahead:
                worker.close()

    def add(self, worker: Engine) -> None:
        """Give a new worker its first rows."""
        self.ahead[worker] = rows_ahead(self.queue, "cpu")
        self._feed(worker)

    def remove(self, worker: Engine) -> None:
        """End a worker; the caller takes back its rows."""
        worker.close()
        del self.ahead[worker]
        self._ending.discard(worker)

    def _receive(self, worker: Engine) -> Iterator[EngineMessage | RowsLost]:
        """Yield the next message of a worker, then give the worker more rows."""
        try:
            message = worker.receive()
        except EngineDied as problem:
            yield from self._replace(worker, str(problem))
            return
        if isinstance(message, EngineFailed):
            message.error.add_note(message.traceback)
            raise message.error
        if message is None:
            self.remove(worker)
            self.queue.take_back(worker)
            self._feed_all()
            return
        if isinstance(message, EngineInfo):
            self._check_same(message)
        yield message
        if isinstance(message, EngineInfo):
            self._loaded.add(worker)
            self.ahead[worker] = rows_ahead(self.queue, message.device)
            self._feed(worker)
        elif isinstance(message, WorkBegun):
            self.queue.begun(worker, message.rows)
            self._feed(worker)
        else:
            self._deaths = 0
            if self.queue.answered(worker, message.rows):
                self._feed_all()  # others may wait for these rows

    def _check_same(self, info: EngineInfo) -> None:
        """Raise NoUsableDevice for an engine whose model or dtype differs from the first one's."""
        first = self._first = self._first or info
        names = ("model", "dtype", "checkpoint")
        known = [name for name in names if first.model.get(name) and info.model.get(name)]
        if changes := differences(first.model, {name: info.model[name] for name in known}):
            raise NoUsableDevice(
                f"the engines differ: {'; '.join(changes)}",
                hint="name the <--dtype=> and the <--revision=>",
            )

    def _feed_all(self) -> None:
        for worker in self.ahead:
            self._feed(worker)

    def _feed(self, worker: Engine) -> None:
        if self.is_stopping or worker in self._ending:
            return
        for work in self.queue.feed(worker, self.ahead[worker]):
            worker.send(work)
        if not self.queue:
            self._ending.add(worker)
            worker.send(None)

    def _replace(self, worker: Engine, how: str) -> Iterator[RowsLost]:
        """Give the rows of a dead worker to others."""
        self.remove(worker)
        yield from map(RowsLost, self.queue.died(worker))
        if self.is_stopping:
            return
        self._deaths += 1
        if self._deaths > max(MAX_DEATHS_IN_A_ROW, 2 * self.queue.workers):
            raise NoUsableDevice(
                f"{self._deaths} engines died in a row, the last one: {how}", hint=self.hint
            )
        self._feed_all()


class EngineProcesses(Workers):
    """Engine processes on this machine, one in each slot."""

    def __init__(
        self, queue: WorkQueue, slots: Sequence[EngineSlot], task: EngineTask, progress: RunProgress
    ):
        super().__init__(queue, progress.should_stop)
        self._free_slots, self._slot_count = list(slots), len(slots)
        self._task = task
        self._context = start_method(slots)
        self._poll = select.poll()
        self._processes: dict[int, EngineProcess] = {}

    def start(self) -> None:
        while self.queue and self._free_slots:
            slot = self._free_slots.pop(0)
            request = with_own_decoding(self._task.request, slot, self._slot_count)
            task = replace(self._task, request=request, slot=slot)
            process = EngineProcess(task, self._context)
            self._processes[process.connection.fileno()] = process
            self._poll.register(process.connection, select.POLLIN)
            self.add(process)

    def ready(self) -> Iterator[EngineProcess]:
        if not (ready := self._poll.poll(0)):
            sleep(PAUSE_SECONDS)
            ready = self._poll.poll(POLL_SECONDS * 1000)
        yield from [self._processes[descriptor] for descriptor, _ in ready]

    def remove(self, worker: EngineProcess) -> None:
        self._poll.unregister(worker.connection)
        del self._processes[worker.connection.fileno()]
        self._free_slots.append(worker.slot)
        super().remove(worker)


def with_own_decoding(request: RunRequest, slot: EngineSlot, engines: int) -> RunRequest:
    """The request for one engine, which decodes images on its share of the cores."""
    if request.input.workers is not None:
        return request
    workers = decoding_processes(slot.device, engines)
    workers = workers or max(1, min(DEFAULT_WORKERS, int(processors()) // engines))
    return replace(request, input=replace(request.input, workers=workers))
