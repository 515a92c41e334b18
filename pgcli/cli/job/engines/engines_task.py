"""`--engines`: how many engine processes a run has, and a task that runs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from pgcli.checkpoints.find import Checkpoint, folder_of
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.cli.job.engines.forked_engines import import_for_engines
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_task import RunEngine, RunTask
from pgcli.cli.options import ModelOptions
from pgcli.cluster.engine_group import EngineGroup
from pgcli.cluster.engine_pool import EnginePool
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.messages import EngineCounts, EngineInfo, LoadedEngine
from pgcli.cluster.start_method import start_method
from pgcli.device.cgroup import processors
from pgcli.device.nvidia_driver import visible_gpus
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.pipeline import Ask
from pgcli.records import error_answer

#: On a CPU, models with smaller files are fastest with one thread for each engine.
SINGLE_THREAD_BYTES = 100 * 2**20
#: For fewer rows, engines take longer to start than they save.
MIN_ROWS_FOR_ENGINES = 500
#: As many as the processes that decode by default have images for.
MOST_ON_CPU = 8


def with_engines(input: RunInput) -> RunTask:
    """The task of the plan, on engine processes if they are asked for or save time."""
    plan, engines, rows = input.plan, input.options.model.engines, input.rows or 0
    claims = plan.claims_chunks
    if engines is None and rows < MIN_ROWS_FOR_ENGINES and not claims:
        return plan.task
    fitting = min(int(processors()), MOST_ON_CPU, 2 * rows // MIN_ROWS_FOR_ENGINES)
    most_on_cpu = 1 if claims else max(1, fitting)
    if engines is None and most_on_cpu > 1 and has_small_files(plan):
        import_for_engines(input.options, most_on_cpu)
    task = EnginesTask(
        plan.task, engines, claims, lambda: input.chunk_rows, most_on_cpu=most_on_cpu
    )
    return cast("RunTask", task)


def has_small_files(plan: Plan) -> bool:
    """Whether the model is on this machine, and is fastest with one thread."""
    folder = folder_of(plan.model)
    return folder is not None and total_bytes(folder) < SINGLE_THREAD_BYTES


@dataclass(frozen=True)
class EnginesTask:
    """A task on `engines` processes; None chooses their number, and for one takes none, unless the
    task `always_processes` in others. On a CPU at most `most_on_cpu` are chosen.

    What does not depend on the engines is asked of the `task`.
    """

    task: RunTask
    engines: int | None
    always_processes: bool = False
    #: Batches do not have rows of several files of the output, so that each follows from its rows.
    chunk_rows: Callable[[], int | None] = lambda: None
    cores: int | None = None  # for all engines on a CPU; None: those of the machine
    most_on_cpu: int = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def load(
        self, checkpoint: Checkpoint, adapter: Checkpoint | None, options: ModelOptions
    ) -> RunEngine:
        slots = engine_slots(
            self.engines,
            options.device,
            total_bytes(checkpoint.folder),
            self.cores,
            self.most_on_cpu,
        )
        if self.engines is None and len(slots) == 1 and not self.always_processes:
            return self.task.load(checkpoint, adapter, options)
        load = partial(load_engine, self.task, checkpoint, adapter, options)
        return EnginePool(load, slots, start_method(slots))

    def stage(self, engine: RunEngine, should_stop: Callable[[], bool]) -> Ask:
        """The function that answers decoded images, by the engines."""
        if not isinstance(engine, EnginePool):
            return self.task.stage(engine, should_stop)
        refuse = partial(error_answer, task=self.task.question.task, model=engine.label)
        return partial(
            engine.ask, refuse=refuse, should_stop=should_stop, file_rows=self.chunk_rows()
        )

    def model_settings(self, engine: RunEngine) -> dict[str, object]:
        if not isinstance(engine, EngineGroup):
            return self.task.model_settings(engine)
        return dict(engine.info.settings)

    def model_facts(self, engine: RunEngine) -> Iterator[tuple[str, str]]:
        return engine.facts if isinstance(engine, EngineGroup) else self.task.model_facts(engine)


def engine_slots(
    engines: int | None,
    device: str,
    checkpoint_bytes: int,
    cores: int | None = None,
    most_on_cpu: int = 1,
) -> list[EngineSlot]:
    """Where engines run: one on each GPU, or on a CPU each with its share of the cores.

    A model with small files runs on one thread for each engine, whatever their number, so that
    its rows do not depend on it. Without a number of engines, a CPU has one for such a model on
    each core, `most_on_cpu` at most, and one for a larger model. Raises NoUsableDevice for more
    engines than GPUs.
    """
    is_small = checkpoint_bytes < SINGLE_THREAD_BYTES
    cores = cores or max(1, int(processors()))
    gpus = visible_gpus() if device in ("auto", "cuda") else 0
    if gpus:
        if (engines or 0) > gpus:
            raise NoUsableDevice(
                f"--engines {engines} needs as many GPUs, and this machine has {gpus}",
                hint=f"--engines {gpus}, or auto",
            )
        return [EngineSlot(1, f"cuda:{index}") for index in range(engines or gpus)]
    if device not in ("auto", "cpu"):
        if (engines or 1) > 1:
            raise UsageError(
                f"--engines {engines} needs a device for each, and --device {device} is one",
                hint="leave out --device",
            )
        return [EngineSlot(cores, device)]
    count = engines or (min(cores, most_on_cpu) if is_small else 1)
    return [EngineSlot(1 if is_small else max(1, cores // count), "cpu")] * count


def load_engine(
    task: RunTask,
    checkpoint: Checkpoint,
    adapter: Checkpoint | None,
    options: ModelOptions,
    slot: EngineSlot,
) -> LoadedEngine:
    """The task's model, loaded in an engine process."""
    import torch

    torch.set_num_threads(slot.threads)
    engine: Any = task.load(checkpoint, adapter, replace(options, device=slot.device))
    engine.starts_small = False  # batches do not depend on which chunk is an engine's first
    info = EngineInfo(
        engine.label,
        engine.device,
        engine.dtype,
        engine.batch_size,
        engine.spec,
        task.model_settings(engine),
        tuple(task.model_facts(engine)),
    )

    def counts() -> EngineCounts:
        images, limits = engine.image_stats, engine.batch_limits
        return EngineCounts(images.hits, images.prompts, limits.summary(), limits.state_dict())

    make_ask = partial(task.stage, engine)
    return LoadedEngine(info, make_ask, counts, engine.batch_limits.load_state_dict)
