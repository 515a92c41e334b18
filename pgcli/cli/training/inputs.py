"""What a run of `train` reads: the rows of its sources, and the files of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pgcli.cli.find_model import find_model
from pgcli.cli.training.options import TrainOptions
from pgcli.cli.ui.console import Screen
from pgcli.images import ImageLimits

MAX_NAMED = 3  # rows that are named in a message

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.training.processes import Processes
    from pgcli.training.rows import RowStore, TrainingRow, TrainingRows
    from pgcli.training.task_inputs import TaskInputs


@dataclass(frozen=True)
class LearningRows:
    """The rows of the sources and of `--eval`, and those to train and to evaluate on."""

    given: TrainingRows
    held_out: TrainingRows | None
    train: Sequence[TrainingRow]
    evaluation: Sequence[TrainingRow]

    @property
    def read(self) -> list[TrainingRows]:
        """The rows that were read: of the sources, and of `--eval`."""
        return [self.given] if self.held_out is None else [self.given, self.held_out]

    @property
    def with_fault(self) -> int:
        """The number of rows that were left out, as they cannot be used."""
        return sum(len(rows.faults) for rows in self.read)


def read_run_rows(command: TrainOptions, store: RowStore, screen: Screen) -> LearningRows:
    """The rows of a run. Raises TooManyErrors, and UsageError for images of both sides."""
    from pgcli.training.row_errors import RowErrors
    from pgcli.training.rows import TrainingRows
    from pgcli.training.setup import split_rows

    reader, errors = command.row_reader(screen), RowErrors(command.error_budget)
    rows, held_out = TrainingRows(store), None if command.eval is None else TrainingRows(store)
    with screen.progress("reading rows", unit="rows") as progress:
        read = partial(
            reader.read, options=command.read_options, errors=errors, track=progress.track
        )
        read(command.sources, rows=rows)
        if command.eval is not None and held_out is not None:
            read([command.eval], rows=held_out)
    for one in filter(None, (rows, held_out)):
        report_left_out(one, reader.missing, screen)
    with screen.progress("comparing images", unit="images") as progress:
        train, evaluation = split_rows(command.settings, rows, held_out, track=progress.track)
    return LearningRows(rows, held_out, train, evaluation)


def report_left_out(rows: TrainingRows, target: str, screen: Screen) -> None:
    """Report the rows that were left out; `target` is what those without a target lack."""
    if without := rows.left_out["without_target"]:
        screen.info(f"{count_of(without, 'row')} without {target} left out")
    if errors := rows.left_out["with_error"]:
        screen.info(f"{count_of(errors, 'row')} with an error in a result file left out")
    if rows.faults:
        more = "; ..." * (len(rows.faults) > MAX_NAMED)
        named = "; ".join(rows.faults[:MAX_NAMED])
        screen.info(
            f"{count_of(len(rows.faults), 'row')} that cannot be used left out: {named}{more}"
        )


def task_inputs(
    command: TrainOptions,
    rows: LearningRows,
    store: RowStore,
    checkpoint: Checkpoint | None,
    processes: Processes,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> TaskInputs:
    """The inputs of the run's task; `track` shows the progress of computing features."""
    from pgcli.device.select import choose_device
    from pgcli.training.task_inputs import ImageReading, TaskInputs

    reading = ImageReading(
        store,
        command.workers,
        ImageLimits() if command.max_pixels is None else ImageLimits(command.max_pixels),
        command.fast_decode,
        command.make_reader,
        command.error_budget,
        rows.with_fault,
    )
    return TaskInputs(
        command.settings,
        rows.train,
        rows.evaluation,
        reading,
        checkpoint,
        choose_device(command.device),
        command.dtype,
        track,
        processes,
    )


def find_checkpoint(
    command: TrainOptions, screen: Screen, processes: Processes
) -> Checkpoint | None:
    """The files of `--model`, downloaded by the first process where they are missing."""
    name = command.model
    if name is None:
        return None
    if processes.count > 1:
        processes.from_first(lambda: str(find_model(name, command.revision, screen)))
    return find_model(name, command.revision, screen)


def count_of(count: int, noun: str) -> str:
    """`1 row` or `2 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
