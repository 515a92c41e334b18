"""What a run of `train` reads: the rows of its sources, and the files of its model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgcli.cli.find_model import find_model
from pgcli.cli.training.train_command import TrainCommand
from pgcli.cli.ui.console import Screen

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.training.rows import ImageStore, TrainingRows


def read_all(
    command: TrainCommand, store: ImageStore, screen: Screen
) -> tuple[TrainingRows, TrainingRows | None]:
    """The rows of the sources, and those of `--eval`."""
    from pgcli.training.rows import read_rows

    read = partial(
        read_rows,
        options=command.input.read_options,
        store=store,
        column=command.column,
        folders_are_labels=command.learning.task == "classify",
    )
    with screen.progress("reading rows", unit="rows") as progress:
        rows = read(command.sources, track=progress.track)
        given = command.evaluation.eval
        held_out = None if given is None else read([given], track=progress.track)
    for found in filter(None, (rows, held_out)):
        if found.without_target:
            screen.info(f"{found.without_target:,} rows without {command.column!r} are left out")
    return rows, held_out


def find_checkpoint(command: TrainCommand, screen: Screen) -> Checkpoint | None:
    """The files of `--model`, downloaded where they are missing."""
    if command.model.model is None:
        return None
    return find_model(command.model.model, command.model.revision, screen)
