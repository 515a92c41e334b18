"""An engine on a machine of a Ray cluster, and what it is begun with."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from pgcli.cli.job import loading
from pgcli.cli.job.chunks.chunk_worker import ChunkReport, ChunkWorker
from pgcli.cli.job.engines.engines_task import EnginesTask
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.output import CONFIDENCE
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_task import RunTask
from pgcli.cli.ui.console import Screen
from pgcli.cluster.engine_pool import EnginePool
from pgcli.cluster.messages import EngineInfo
from pgcli.errors import NoUsableDevice
from pgcli.sinks import open_folder
from pgcli.sinks.chunk_writer import ChunkRow, ChunkWriter
from pgcli.sources.paths import parse_path, url_scheme
from pgcli.state.file_lock import file_lock
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import LOCK, file_list
from pgcli.state.stored_run import StoredRunState

if TYPE_CHECKING:
    from pgcli.sinks.column_types import ColumnTypes
    from pgcli.sources.source import Source


@dataclass(frozen=True)
class OutputSetup:
    """What the engines of a run need to know of its output."""

    source: Source
    run_id: str
    files: str
    settings: Mapping[str, Any]
    types: ColumnTypes
    chunk_rows: int
    stored: Mapping[int, Any]
    limits: Mapping[str, Any]  # batch sizes that earlier engines reduced on OOM, by device


class RemoteEngine:
    """An engine on a machine of the cluster: it reads its part of the input and writes its chunks.

    `folder` is the current folder of the command, as names of sources are relative to it.
    """

    def __init__(self, plan: Plan, folder: str):
        self._plan, self._folder = plan, folder
        self._cores = plan.options.model.ray_cpus
        self._stack = ExitStack()

    def load(self) -> EngineInfo:
        """Load the model. Raises NoUsableDevice where the folders are not on this machine."""
        is_here = Path(self._folder).is_dir()
        if is_here:
            os.chdir(self._folder)
        output = Path(self._plan.options.output.output)
        if not self._plan.is_stored and not (is_here and output.parent.is_dir()):
            raise NoUsableDevice(
                f"{self._folder} is not on {socket.gethostname()}",
                hint="start the command in a folder that all machines of the cluster see",
            )
        if absent := absent_sources(self._plan.sources):
            raise NoUsableDevice(
                f"{absent[0]} is not on {socket.gethostname()}",
                hint="name sources that all machines of the cluster see by the same path",
            )
        task = EnginesTask(self._plan.task, 1, True, lambda: self._input.chunk_rows, self._cores)
        self._plan = replace(self._plan, task=cast("RunTask", task))
        self._engine = self._load_model(self._plan)
        self._stack.callback(self._engine.close)
        return self._engine.info

    def _load_model(self, plan: Plan) -> EnginePool:
        """The model in a process of its own, which an image may end without ending this one."""
        screen = Screen(quiet=True)
        checkpoint = loading.find_model(plan, screen)
        return cast(EnginePool, loading.load_model(plan, screen, checkpoint))

    def begin(self, setup: OutputSetup) -> None:
        """Open the output, which no run replaces while this process lives."""
        state = self._open_state(setup.files)
        setup.source.read_lists(partial(file_list, state.folder, setup.files))
        url_reader = self._plan.options.input.url_reader
        input = RunInput(self._plan, setup.source, url_reader, setup.chunk_rows)
        self._input = input
        state.run_id = setup.run_id
        self._engine.batch_limits.load_state_dict(setup.limits.get(self._engine.device, {}))
        schema = replace(input.row_schema, confidence=CONFIDENCE in setup.settings)
        store = open_folder(state, replace(schema, exact=True), setup.settings, setup.types)
        store.chunks.update(setup.stored)
        writer = ChunkWriter(store, schema)
        self._worker = ChunkWorker(input, self._engine, writer)
        self._stack.enter_context(self._worker)

    def _open_state(self, files: str) -> RunState:
        """The state of the output, with the lists of input files whose names begin so."""
        output, part = self._plan.options.output.output, f"-ray-{token_hex(4)}"
        if self._plan.is_stored:
            folder = self._stack.enter_context(TemporaryDirectory(prefix="pgcli-"))
            stored = StoredRunState(output, Path(folder), part=part)
            stored.lists.prefix = files
            stored.lists.read()
            return stored
        state = RunState(Path(output).absolute(), part=part)
        self._stack.enter_context(file_lock(state.folder / LOCK, shared=True, timeout_seconds=60))
        return state

    def run(self, number: int, ahead: int | None) -> ChunkReport:
        """Answer and store a chunk."""
        report = self._worker.run(number, ahead)
        assert report is not None
        report.limits = self._engine.batch_limits.state_dict()
        return report

    def answer(self, rows: range) -> list[ChunkRow]:
        """The rows of an image."""
        found = self._worker.answer(rows)
        assert found is not None
        return found

    def refuse(self, rows: range) -> list[ChunkRow]:
        """Error rows of an image that ended engines."""
        return self._worker.refuse(rows)

    def store(self, number: int, rows: Sequence[ChunkRow]) -> ChunkReport:
        """Store a chunk whose rows were answered one by one."""
        return self._worker.store(ChunkReport(number), rows)


def absent_sources(names: Sequence[str]) -> list[str]:
    """The named files and folders that are not on this machine."""
    named = (name for name in names if not url_scheme(name) and not has_magic(name))
    return [name for name in named if not os.path.lexists(parse_path(name))]
