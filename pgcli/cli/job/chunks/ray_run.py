"""`--ray`: a run whose chunks are computed by the engines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pgcli.cli.job.chunks.chunk_worker import ChunkReport
from pgcli.cli.job.chunks.ray_engine import OutputSetup, RemoteEngine
from pgcli.cli.job.chunks.shared_run import SharedOutput, run_shared
from pgcli.cli.job.engines.engines_task import has_small_files
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.output import RunOutput
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_settings import model_settings, run_metadata
from pgcli.cli.job.run_summary import RunSummary
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.ui.console import Screen
from pgcli.cluster.chunk_driver import ChunkDriver
from pgcli.cluster.engine_group import EngineGroup
from pgcli.cluster.messages import EngineInfo
from pgcli.cluster.ray_fleet import EngineResources, RayFleet
from pgcli.errors import NoUsableDevice
from pgcli.images import ImageSpec

if TYPE_CHECKING:
    pass

#: Stands for the engine of a run whose chunks others have computed.
NO_ENGINE = EngineInfo("no model", "no device", "no dtype", 1, ImageSpec(0))
#: The cores for an engine on a CPU whose model is not small.
LARGE_MODEL_CPUS = 8


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


def parts(rows: range, per_image: int) -> list[range]:
    """The rows of each image."""
    starts = [rows.start, *range((rows.start // per_image + 1) * per_image, rows.stop, per_image)]
    return [
        range(start, stop) for start, stop in zip(starts, [*starts[1:], rows.stop], strict=True)
    ]
