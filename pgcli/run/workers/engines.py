"""Several engine processes of one command: started, followed, and replaced when they die."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from pgcli.errors import NoUsableDevice
from pgcli.run.state.open_files import Coverage, Segment
from pgcli.run.workers.engine_process import (
    EngineDied,
    EngineProcess,
    EngineSlot,
    EngineTask,
    start_method,
)
from pgcli.run.workers.worker import EngineInfo, Report, check_equal

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest
    from pgcli.run.run import Run
    from pgcli.run.state.processes import Process

#: Engines that may end, one after the other, while no chunk is computed.
MAX_DEATHS_IN_A_ROW = 8
POLL_SECONDS = 0.2


def run_engines(
    run: Run, slots: Sequence[EngineSlot], request: RunRequest, process: Process
) -> None:
    """Have engine processes compute the missing chunks, and put their rows into the output.

    An engine that dies is started again. Raises what an engine raises, and NoUsableDevice where
    engines only die.
    """
    Engines(run, slots, request, process).follow()


class Engines:
    """The engine processes of a run."""

    def __init__(
        self, run: Run, slots: Sequence[EngineSlot], request: RunRequest, process: Process
    ):
        self._run, self._request, self._process = run, request, process
        self._context = start_method(slots)
        self._deaths = 0
        self._reported: set[int] = set()  # chunks whose rows are taken
        self._is_stopping = False
        self._ordered = OrderedRows(run)
        assert run.state is not None
        run.summary.engines = len(slots)
        run.take_saved()
        self._engines = [self._start(slot) for slot in slots]

    def follow(self) -> None:
        """Follow the engines until all have ended."""
        try:
            while self._engines:
                self._request_stop()
                engines: dict[Any, EngineProcess] = {one.connection: one for one in self._engines}
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
            self._deaths = 0
            self._reported.add(message.number)
            for segment in self._run.new_segments(message):
                self._take(segment)
            self._run.on_report(message)
        else:
            self._on_loaded(engine, *message)

    def _on_loaded(self, engine: EngineProcess, process_id: str, info: EngineInfo) -> None:
        engine.is_loaded, engine.process_id = True, process_id
        self._run.on_model(info)
        check_equal(self._run.record, info)
        state = self._run.state
        assert state is not None
        if not self._run.record.model:
            self._run.note_model(state)

    def _take(self, segment: Segment) -> None:
        form = self._run.form
        assert form is not None
        for one in self._ordered.take(segment):
            form.take(one, self._run.known_total())

    def _request_stop(self) -> None:
        if not self._is_stopping and self._run.should_stop():
            self._is_stopping = True
            for engine in self._engines:
                engine.stop()

    def _remove(self, engine: EngineProcess) -> None:
        engine.close()
        self._engines.remove(engine)

    def _replace(self, engine: EngineProcess, problem: EngineDied) -> None:
        """Start an engine in place of one that has died, unless the run is to stop."""
        self._remove(engine)
        if self._is_stopping or self._run.should_stop():
            return
        self._process.free_chunks(engine.process_id, self._reported)
        self._deaths += 1
        if self._deaths > max(MAX_DEATHS_IN_A_ROW, 2 * len(self._engines)):
            raise NoUsableDevice(
                f"{self._deaths} engine processes ended in a row, the last one: {problem}",
                hint="fewer --engines need less memory; --engines 1 --debug shows more",
            ) from problem
        self._engines.append(self._start(engine.slot))

    def _start(self, slot: EngineSlot) -> EngineProcess:
        task = EngineTask(self._request, self._process.id, self._run.coverage.ranges)
        return EngineProcess(task, slot, self._context)


class OrderedRows:
    """Passes rows in their order to what is made beside them, or to standard output.

    Those that were saved before are left out.
    """

    def __init__(self, run: Run):
        self._run, self._saved = run, Coverage(run.segments)
        self._next = self._saved.end_of(0)
        self._waiting: dict[int, Segment] = {}
        self._is_used = bool(run.hooks or run.saves)

    def take(self, segment: Segment) -> Iterator[Segment]:
        """Pass on the rows that follow on those passed on before; yield what is not needed more."""
        if not self._is_used:
            yield segment
            return
        self._waiting[segment.first] = segment
        while ready := [one for one in self._waiting.values() if one.first <= self._next]:
            for one in ready:
                del self._waiting[one.first]
                for number, row in self._rows(one):
                    self._run.pass_on(number, row)
                self._next = self._saved.end_of(max(self._next, one.end))
                yield one

    def _rows(self, segment: Segment) -> Iterator[tuple[int, Any]]:
        run = self._run
        lines = run.files.lines(segment, self._next, segment.end)
        schema = run.line_schema
        for number, line in enumerate(lines, self._next):
            yield number, schema.answer(json.loads(line))
