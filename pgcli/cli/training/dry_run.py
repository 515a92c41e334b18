"""`train --dry-run`: the plan of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.cli.training.inputs import read_all, split
from pgcli.cli.training.train_command import TrainCommand
from pgcli.cli.ui.console import Screen

if TYPE_CHECKING:
    from pgcli.training.settings import TrainingSettings


def dry_run(command: TrainCommand, settings: TrainingSettings, screen: Screen) -> int:
    """Read the rows and print the plan. Writes nothing."""
    import tempfile

    from pgcli.training.row_store import RowStore

    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(Path(folder))
        try:
            rows, held_out = read_all(command, store, screen)
            train, evaluation = split(settings, rows, held_out, screen)
        finally:
            store.close()
    recipe = settings.recipe
    per_epoch = max(1, len(train) // min(recipe.batch_size, len(train)))
    options = settings.trainer_options(per_epoch, is_evaluated=bool(evaluation))
    facts = [
        ("task", settings.task),
        ("model", settings.model or f"new, {settings.init}"),
        ("rows", f"{len(train):,} to train on, {len(evaluation):,} to evaluate on"),
        ("steps", f"{options.steps:,}, {per_epoch:,} in an epoch"),
        ("batch", f"{min(recipe.batch_size, len(train)):,} rows"),
        ("learning rate", f"{options.learning_rate:g}, {options.warmup:,} steps of warm-up"),
        ("weight decay", f"{options.weight_decay:g}"),
        ("evaluation", f"every {options.eval_every:,} steps" if options.eval_every else "none"),
        ("output", str(command.folder)),
    ]
    screen.table(facts)
    return 0
