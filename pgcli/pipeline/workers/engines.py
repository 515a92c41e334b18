"""Several engine processes of one command: started, followed, and replaced when they die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from pgcli.device.cgroup import processors
from pgcli.images.pool import DEFAULT_WORKERS
from pgcli.pipeline.state.claims import free_chunks
from pgcli.pipeline.state.open_files import Coverage, Segment
from pgcli.pipeline.workers.engine_process import (
    EngineDied,
    EngineProcess,
    start_method,
)
from pgcli.pipeline.workers.slots import EngineSlot
from pgcli.pipeline.workers.worker import Deaths, EngineTask, Report

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest
    from pgcli.pipeline.run import Run
    from pgcli.pipeline.state.processes import Process

POLL_SECONDS = 0.2


def run_engines(
    run: Run,
    slots: Sequence[EngineSlot],
    request: RunRequest,
    process: Process,
    take: Callable[[Segment], None],
    *,
    in_order: bool,
) -> None:
    """Have engine processes compute the missing chunks, whose rows `take` puts where they belong.

    With `in_order` rows are taken in their order, and passed to what is made beside them. An engine
    that dies is started again. Raises what an engine raises, and NoUsableDevice where engines only
    die.
    """
    run.summary.engines = len(slots)
    run.output.take_saved()
    if in_order:
        take = OrderedRows(run, take).take
    Engines(run, slots, request, process, take).follow()


class Engines:
    """The engine processes of a run."""

    def __init__(
        self,
        run: Run,
        slots: Sequence[EngineSlot],
        request: RunRequest,
        process: Process,
        take: Callable[[Segment], None],
    ):
        self._run, self._process, self._take = run, process, take
        self._request = with_own_decoding(request, slots)
        self._context = start_method(slots)
        self._deaths = Deaths("fewer --engines need less memory; --engines 1 --debug shows more")
        self._reported: set[int] = set()  # chunks whose rows are taken
        self._is_stopping = False
        self._engines = [self._start(slot) for slot in slots]

    def follow(self) -> None:
        """Follow the engines until all have ended."""
        try:
            while self._engines:
                if not self._is_stopping and self._run.progress.should_stop():
                    self._is_stopping = True
                    for engine in self._engines:
                        engine.stop()
                engines: dict[Any, EngineProcess] = {e.connection: e for e in self._engines}
                for connection in wait(list(engines), POLL_SECONDS):
                    self._receive(engines[connection])
        finally:
            for engine in self._engines:
                engine.close()

    def _receive(self, engine: EngineProcess) -> None:
        try:
            message = engine.receive()
        except EngineDied as problem:
            self._replace(engine, problem)
            return
        if message is None:
            self._remove(engine)
        elif isinstance(message, Report):
            self._deaths.reset()
            self._reported.add(message.number)
            self._run.on_report(message, self._take)
        else:
            engine.process_id = message.process_id
            self._run.on_engine(message.info)

    def _remove(self, engine: EngineProcess) -> None:
        engine.close()
        self._engines.remove(engine)

    def _replace(self, engine: EngineProcess, problem: EngineDied) -> None:
        """Start an engine in place of one that has died, unless the run is to stop."""
        self._remove(engine)
        if self._is_stopping or self._run.progress.should_stop():
            return
        free_chunks(self._run.output.state.store, engine.process_id, self._reported)
        self._deaths.add(str(problem), len(self._engines) + 1)
        self._engines.append(self._start(engine.slot))

    def _start(self, slot: EngineSlot) -> EngineProcess:
        saved = self._run.output.coverage.ranges
        return EngineProcess(
            EngineTask(self._request, slot, self._process.id, saved), self._context
        )


def with_own_decoding(request: RunRequest, slots: Sequence[EngineSlot]) -> RunRequest:
    """The request for each of these engines, which decodes images on its share of the cores."""
    if request.input.workers is not None or slots[0].device != "cpu":
        return request
    workers = max(1, min(DEFAULT_WORKERS, int(processors()) // len(slots)))
    return replace(request, input=replace(request.input, workers=workers))


class OrderedRows:
    """Rows in their order, for what is made beside rows and for standard output."""

    def __init__(self, run: Run, take: Callable[[Segment], None]):
        self._run, self._take = run, take
        self._saved = Coverage(run.output.segments)  # which has been passed on before
        self._next = self._saved.end_of(0)
        self._waiting: dict[int, Segment] = {}

    def take(self, segment: Segment) -> None:
        """Take the rows of an open file now, or after those before them."""
        self._waiting[segment.first] = segment
        while ready := [s for s in self._waiting.values() if s.first <= self._next]:
            for segment in ready:
                del self._waiting[segment.first]
                if self._run.hooks:
                    self._run.pass_to_hooks(self._run.output.rows_of(segment, self._next))
                self._next = self._saved.end_of(max(self._next, segment.end))
                self._take(segment)
