"""The body of `train`: rows and model are read, then the trainer runs until it ends or is ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.cli.training.display import run_trainer
from pgcli.cli.training.dry_run import dry_run
from pgcli.cli.training.inputs import find_checkpoint, read_run_rows, task_inputs
from pgcli.cli.training.options import TrainOptions
from pgcli.cli.training.processes import is_started_by_torchrun, joined_processes
from pgcli.cli.training.report import report
from pgcli.cli.training.run_record import MERGED, RUN, begin_run, check_run, run_record
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputInUse
from pgcli.output.reader import state_folder
from pgcli.run.state.folder import LOCK, LOCK_SECONDS
from pgcli.stores import Held, LocalStore
from pgcli.stores.files import read_json
from pgcli.stores.writing import check_target, wrap_write_errors, write_json

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.training.processes import Processes
    from pgcli.training.rows import RowStore


def run_training(command: TrainOptions) -> int:
    """Train; return 3 if images could not be read, else 0."""
    if not is_started_by_torchrun():
        return train(command, None)
    with joined_processes(command.device) as processes:
        return train(command, processes)


def train(command: TrainOptions, processes: Processes | None) -> int:
    """Train in this process, or in one of several, of which the first prints and writes."""
    is_first = processes is None or processes.is_first
    screen = Screen(quiet=command.quiet or not is_first)
    with screen.status("loading PyTorch"):
        settings = command.settings
    settings.check(has_eval=command.eval is not None)
    folder = command.folder
    if not command.overwrite and read_json(folder / RUN) is None:
        check_target(folder, "-o", is_folder=True, overwrite=False)
    from pgcli.training.processes import ALONE
    from pgcli.training.rows import RowStore

    if command.dry_run:
        return dry_run(command, screen, processes or ALONE) if is_first else 0
    processes = processes or ALONE
    with opened_state(folder, processes) as state:
        store = RowStore(state)
        try:
            return train_rows(command, state, store, screen, processes)
        finally:
            store.close()


def write_merged(command: TrainOptions, checkpoint: Checkpoint | None) -> None:
    """Write the checkpoint with the best adapter merged into its weights."""
    from pgcli.checkpoints.merged import merge_adapter

    assert checkpoint is not None
    folder = command.folder / MERGED
    with wrap_write_errors(folder):
        merge_adapter(checkpoint.folder, command.folder, folder)


@contextmanager
def opened_state(folder: Path, processes: Processes) -> Iterator[Path]:
    """The folder of the run's state, locked by the first process."""
    state = state_folder(folder)
    with ExitStack() as stack:
        processes.from_first(lambda: stack.enter_context(locked(state)))
        yield state


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """A block in which the folder is there and locked; it is removed where nothing was saved.

    Raises OutputInUse.
    """
    store = LocalStore(state, create=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(store.lock(LOCK, timeout_seconds=LOCK_SECONDS))
        except Held:
            raise OutputInUse(
                f"{state.with_suffix('')} is in use by another run",
                hint="wait for it, end it, or choose another -o",
            ) from None
        try:
            yield
        finally:
            store.delete([LOCK])
            store.remove_folders()


def train_rows(
    command: TrainOptions, state: Path, store: RowStore, screen: Screen, processes: Processes
) -> int:
    """Read the rows and the model, and train."""
    from pgcli.training.metrics_file import METRICS, read_metrics
    from pgcli.training.setup import make_task
    from pgcli.training.trainer import Trainer

    rows = read_run_rows(command, store, screen)
    checkpoint = find_checkpoint(command, screen, processes)
    record = run_record(command, rows, checkpoint)
    resumes = check_run(command, record)
    with screen.progress("reading the model and features", unit="batches") as progress:
        task = make_task(task_inputs(command, rows, store, checkpoint, processes, progress.track))
    processes.from_first(lambda: None if resumes else begin_run(command, state, record))
    settings, per_epoch = command.settings, task.order.steps_per_epoch
    options = settings.trainer_options(per_epoch, is_evaluated=bool(rows.evaluation))
    trainer = Trainer(task, options, command.folder, state, processes)
    began = perf_counter()
    is_complete = run_trainer(trainer, screen)
    seconds = perf_counter() - began
    faults = {name: why for one in processes.gather({**task.faults}) for name, why in one.items()}
    named = [key[0] for key in faults]
    unreadable = [*dict.fromkeys([*earlier_faults(command.folder), *named])]
    result = {"complete": is_complete, **asdict(trainer.progress), "unreadable": unreadable}

    def end_run() -> None:
        if is_complete and settings.answer.merge:
            write_merged(command, checkpoint)
        write_json(command.folder / RUN, record | {"result": result})
        report(command, trainer, rows.read, faults, seconds, screen)

    processes.from_first(end_run)  # torchrun ends all processes once one has an exit code of 3
    has_lost = any(line.get("lost") for line in read_metrics(command.folder / METRICS))
    return 3 if unreadable or has_lost or rows.with_fault else 0


def earlier_faults(folder: Path) -> list[str]:
    """The ids of the rows that could not be used before this start of the run."""
    found: list[str] = (read_json(folder / RUN) or {}).get("result", {}).get("unreadable", [])
    return found
