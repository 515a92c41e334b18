"""What a run of `train` reads: the rows of its sources, and the files of its model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pgcli.cli.find_model import find_model
from pgcli.cli.options.shared import error_budget
from pgcli.cli.training.train_command import TrainCommand
from pgcli.cli.ui.console import Screen

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.training.processes import Processes
    from pgcli.training.row_store import RowStore
    from pgcli.training.rows import TrainingRow, TrainingRows
    from pgcli.training.settings import TrainingSettings


def read_all(
    command: TrainCommand, store: RowStore, screen: Screen
) -> tuple[TrainingRows, TrainingRows | None]:
    """The rows of the sources, and those of `--eval`. Raises TooManyErrors."""
    from pgcli.training.item_errors import ItemErrors
    from pgcli.training.rows import read_rows

    output = command.output
    read = partial(
        read_rows,
        options=command.input.read_options,
        store=store,
        targets=command.targets(screen),
        errors=ItemErrors(error_budget(output.max_errors, output.on_error)),
    )
    with screen.progress("reading rows", unit="rows") as progress:
        rows = read(command.sources, track=progress.track)
        given = command.evaluation.eval
        held_out = None if given is None else read([given], track=progress.track)
    for found in filter(None, (rows, held_out)):
        if without := found.left_out["without_target"]:
            name = command.targets(screen).name
            screen.info(f"{count_of(without, 'row')} without {name} left out")
        if errors := found.left_out["with_error"]:
            screen.info(f"{count_of(errors, 'row')} with an error in a result file left out")
        if found.first_fault:
            faults = count_of(found.left_out["with_fault"], "row")
            screen.info(f"{faults} whose image cannot be used left out: {found.first_fault}")
    return rows, held_out


def split(
    settings: TrainingSettings, rows: TrainingRows, held_out: TrainingRows | None, screen: Screen
) -> tuple[Sequence[TrainingRow], Sequence[TrainingRow]]:
    """The rows to train on and those to evaluate on. Raises UsageError for images of both."""
    from pgcli.training.setup import split_rows

    with screen.progress("comparing images", unit="images") as progress:
        return split_rows(settings, rows, held_out, track=progress.track)


def find_checkpoint(
    command: TrainCommand, screen: Screen, processes: Processes
) -> Checkpoint | None:
    """The files of `--model`, downloaded by the first process where they are missing."""
    name = command.model.model
    if name is None:
        return None
    if processes.count > 1:
        processes.from_first(lambda: str(find_model(name, command.model.revision, screen)))
    return find_model(name, command.model.revision, screen)


def count_of(count: int, noun: str) -> str:
    """`1 row` or `2 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
