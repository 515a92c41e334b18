"""`--ray`: a run whose chunks are computed by the engines of a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from pgcli.cli.job import loading
from pgcli.cli.job.chunk_worker import ChunkReport, ChunkWorker
from pgcli.cli.job.engines import EnginesTask, has_small_files
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.output import CONFIDENCE, RunOutput
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_settings import model_settings, run_metadata
from pgcli.cli.job.run_summary import RunSummary
from pgcli.cli.job.run_task import RunTask
from pgcli.cli.job.shared_run import SharedOutput, run_shared
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.ui.console import Screen
from pgcli.cluster.chunk_driver import ChunkDriver
from pgcli.cluster.engine_group import EngineGroup
from pgcli.cluster.engine_pool import EnginePool
from pgcli.cluster.messages import EngineInfo
from pgcli.cluster.ray_fleet import EngineResources, RayFleet
from pgcli.errors import NoUsableDevice
from pgcli.images import ImageSpec
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

#: Stands for the engine of a run whose chunks others have computed.
NO_ENGINE = EngineInfo("no model", "no device", "no dtype", 1, ImageSpec(0))
#: The cores for an engine on a CPU whose model is not small.
LARGE_MODEL_CPUS = 8


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


class RemoteEngines(EngineGroup):
    """The engines of the cluster, as the summary shows them."""

    def __init__(self, info: EngineInfo, address: str):
        super().__init__()
        self.info, self._address = info, address
        self.most_at_once = 0

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        yield "engines", f"{self.most_at_once} at most at once on Ray ({self._address})"
        yield from self.info.facts


def run_on_ray(
    input: RunInput, output: RunOutput, screen: Screen, summary: RunSummary
) -> RemoteEngines:
    """Have the engines of a cluster compute the chunks that no other process does."""
    run = RayRun(input, output, summary, screen)
    run_shared(input, output, screen, summary.tally, run.reports)
    return run.engines


class RayRun:
    """The chunks of a run, driven on a cluster."""

    def __init__(self, input: RunInput, output: RunOutput, summary: RunSummary, screen: Screen):
        self._input, self._output, self._summary = input, output, summary
        self._say = screen.info
        self.engines = RemoteEngines(NO_ENGINE, input.options.model.ray or "")

    def reports(
        self, shared: SharedOutput, shutdown: GracefulShutdown
    ) -> Generator[ChunkReport, None, None]:
        """The reports of all chunks that this driver has computed."""
        plan, options = self._input.plan, self._input.options.model
        assert options.ray is not None
        resources = partial(engine_resources, plan)
        fleet = RayFleet(options.ray, self._factory, resources, self._say)
        driver = ChunkDriver(
            fleet,
            shared.claims,
            lambda number: parts(shared.chunk(number), plan.prompts_per_image),
            partial(self._begin, shared),
            most=options.engines,
            should_stop=shutdown.should_stop,
        )
        with closing(driver.reports()) as found:
            for report in found:
                self.engines.most_at_once = driver.most_at_once
                if report.limits:
                    shared.state.progress.memory[self.engines.device] = report.limits
                yield report

    def _factory(self, resources: EngineResources) -> Callable[[], RemoteEngine]:
        """What makes an engine in the cluster."""
        plan = self._input.plan
        model = replace(plan.options.model, ray_cpus=int(resources.cpus))
        task: Any = plan.task
        plan = replace(plan, task=task.task, options=replace(plan.options, model=model))
        return partial(RemoteEngine, plan, os.getcwd())  # noqa: PTH109

    def _begin(self, shared: SharedOutput, info: EngineInfo) -> OutputSetup:
        """What a loaded engine needs. Raises OutputExists for another model than before."""
        plan, output, state = self._input.plan, self._output, shared.state
        assert plan.options.model.ray is not None
        engines = RemoteEngines(info, plan.options.model.ray)
        if self.engines.info is NO_ENGINE:
            self.engines = engines
            output.add_model(model_settings(plan, engines), run_metadata(plan, engines))
            self._summary.on_model(engines)
            state.begin()
        elif model_settings(plan, engines) != model_settings(plan, self.engines):
            raise NoUsableDevice(
                f"an engine has {info.label} in {info.dtype}, and the first one "
                f"{self.engines.label} in {self.engines.dtype}",
                hint="--dtype and --revision make all engines equal",
            )
        assert self._input.chunk_rows is not None
        return OutputSetup(
            self._input.source,
            state.run_id,
            state.lists.prefix,
            dict(output.settings),
            shared.store.types,
            self._input.chunk_rows,
            shared.replaced,
            state.progress.memory,
        )


def engine_resources(plan: Plan, has_gpus: bool) -> EngineResources:
    """What each engine takes of the cluster, by the options or by what there is."""
    options = plan.options.model
    may_use_gpus = has_gpus and options.device != "cpu"
    gpus = float(may_use_gpus) if options.ray_gpus is None else options.ray_gpus
    cores = 1 if gpus or has_small_files(plan) else LARGE_MODEL_CPUS
    return EngineResources(gpus, options.ray_cpus or cores)


def absent_sources(names: Sequence[str]) -> list[str]:
    """The named files and folders that are not on this machine."""
    named = (name for name in names if not url_scheme(name) and not has_magic(name))
    return [name for name in named if not os.path.lexists(parse_path(name))]


def parts(rows: range, per_image: int) -> list[range]:
    """The rows of each image."""
    starts = [rows.start, *range((rows.start // per_image + 1) * per_image, rows.stop, per_image)]
    return [
        range(start, stop) for start, stop in zip(starts, [*starts[1:], rows.stop], strict=True)
    ]
