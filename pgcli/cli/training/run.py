"""The body of `train`: rows and model are read, then the trainer runs until it ends or is ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.cli.options.shared import error_budget
from pgcli.cli.training.display import run_trainer
from pgcli.cli.training.dry_run import dry_run
from pgcli.cli.training.inputs import find_checkpoint, read_all, split
from pgcli.cli.training.processes import is_started_by_torchrun, joined_processes
from pgcli.cli.training.report import report
from pgcli.cli.training.run_record import MERGED, RUN, begin_run, check_run, run_record
from pgcli.cli.training.tensorboard import events_observer
from pgcli.cli.training.train_command import TrainCommand
from pgcli.cli.ui.console import Screen
from pgcli.images import ImageLimits
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.destination import check_destination
from pgcli.state.lock import output_lock, remove_locks
from pgcli.state.state_folder import state_folder
from pgcli.state.write_errors import make_folder, wrap_write_errors

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.training.processes import Processes
    from pgcli.training.row_store import RowStore
    from pgcli.training.settings import TrainingSettings


def run_training(command: TrainCommand) -> int:
    """Train; return 3 if images could not be read, else 0."""
    if not is_started_by_torchrun():
        return train(command, None)
    with joined_processes(command.model.device) as processes:
        return train(command, processes)


def train(command: TrainCommand, processes: Processes | None) -> int:
    """Train in this process, or in one of several, of which the first prints and writes."""
    is_first = processes is None or processes.is_first
    screen = Screen(quiet=command.output.quiet or not is_first)
    with screen.status("loading PyTorch"):
        settings = make_settings(command)
    settings.check(has_eval=command.evaluation.eval is not None)
    folder = command.folder
    if not command.output.overwrite and read_json(folder / RUN) is None:
        check_destination(folder, kind="folder")
    from pgcli.training.processes import ALONE
    from pgcli.training.row_store import RowStore

    if command.output.dry_run:
        return dry_run(command, settings, screen, processes or ALONE) if is_first else 0
    processes = processes or ALONE
    with opened_state(folder, processes) as state:
        store = RowStore(state)
        try:
            return train_rows(command, settings, state, store, screen, processes)
        finally:
            store.close()


def write_merged(command: TrainCommand, checkpoint: Checkpoint | None) -> None:
    """Write the checkpoint with the best adapter merged into its weights."""
    from pgcli.checkpoints.merged import merge_adapter

    assert checkpoint is not None
    folder = command.folder / MERGED
    with wrap_write_errors(folder):
        merge_adapter(checkpoint.folder, command.folder, folder)


def make_settings(command: TrainCommand) -> TrainingSettings:
    """The settings of the run."""
    from pgcli.training.answer_settings import AnswerSettings
    from pgcli.training.settings import TrainingSettings

    learning, evaluation = asdict(command.learning), command.evaluation
    return TrainingSettings(
        **learning | {"task": command.learning.task or "answer"},
        answer=AnswerSettings(**asdict(command.method)),
        model=command.model.model,
        init=command.model.init,
        eval_fraction=evaluation.eval_fraction,
        eval_every=evaluation.eval_every,
        patience=evaluation.patience,
        column=command.column,
    )


@contextmanager
def opened_state(folder: Path, processes: Processes) -> Iterator[Path]:
    """The folder of the run's state, locked by the first process."""
    state = state_folder(folder)
    with ExitStack() as stack:
        processes.from_first(lambda: stack.enter_context(locked(state)))
        yield state


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """A block in which the folder is there and locked; it is removed where nothing was saved."""
    with wrap_write_errors(state):
        make_folder(state)
    try:
        with output_lock(state):
            yield
    finally:
        remove_locks(state)
        with suppress(OSError):  # not empty
            state.rmdir()


def train_rows(
    command: TrainCommand,
    settings: TrainingSettings,
    state: Path,
    store: RowStore,
    screen: Screen,
    processes: Processes,
) -> int:
    """Read the rows and the model, and train."""
    from pgcli.device.select import choose_device
    from pgcli.training.metrics_file import METRICS, read_metrics
    from pgcli.training.setup import make_task
    from pgcli.training.task_inputs import ImageReading, TaskInputs
    from pgcli.training.trainer import Trainer

    rows, held_out = read_all(command, store, screen)
    train, evaluation = split(settings, rows, held_out, screen)
    checkpoint = find_checkpoint(command, screen, processes)
    record = run_record(command, settings, rows, held_out, checkpoint)
    resumes = check_run(command, record)
    input = command.input
    limits = ImageLimits() if input.max_pixels is None else ImageLimits(input.max_pixels)
    budget = error_budget(command.output.max_errors, command.output.on_error)
    read = [rows] if held_out is None else [rows, held_out]
    left_out = sum(one.left_out["with_fault"] for one in read)
    reading = ImageReading(
        store, input.workers, limits, input.fast_decode, input.url_reader, budget, left_out
    )
    with screen.progress("reading the model and features", unit="batches") as progress:
        inputs = TaskInputs(
            settings,
            train,
            evaluation,
            reading,
            checkpoint,
            choose_device(command.model.device),
            command.model.dtype,
            progress.track,
            processes,
        )
        task = make_task(inputs)
    processes.from_first(lambda: None if resumes else begin_run(command, state, record))
    options = settings.trainer_options(task.order.steps_per_epoch, is_evaluated=bool(evaluation))
    trainer = Trainer(task, options, command.folder, state, processes)
    began = perf_counter()
    with ExitStack() as opened:
        observers = []
        if command.output.tensorboard and processes.is_first:
            events = events_observer(command.folder, trainer.progress.step)
            observers.append(opened.enter_context(events))
        is_complete = run_trainer(trainer, screen, observers)
    seconds = perf_counter() - began
    faults = {name: why for one in processes.gather({**task.faults}) for name, why in one.items()}
    named = [key[0] for key in faults]
    unreadable = [*dict.fromkeys([*earlier_faults(command, resumes=resumes), *named])]
    result = {"complete": is_complete, **asdict(trainer.progress), "unreadable": unreadable}

    def end_run() -> None:
        if is_complete and settings.answer.merge:
            write_merged(command, checkpoint)
        write_json(command.folder / RUN, record | {"result": result})
        report(command, trainer, read, faults, seconds, screen)

    processes.from_first(end_run)  # torchrun ends all processes once one has an exit code of 3
    has_lost = any(line.get("lost") for line in read_metrics(command.folder / METRICS))
    return 3 if unreadable or has_lost or left_out else 0


def earlier_faults(command: TrainCommand, *, resumes: bool) -> list[str]:
    """The ids of the rows that could not be used before a run resumed."""
    earlier = read_json(command.folder / RUN) if resumes else None
    found: list[str] = (earlier or {}).get("result", {}).get("unreadable", [])
    return found
