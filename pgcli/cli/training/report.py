"""What `train` prints at its end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pgcli.cli.training.options import TrainOptions
from pgcli.cli.ui.console import Screen
from pgcli.wording import duration

if TYPE_CHECKING:
    from pgcli.training.rows import RowKey, TrainingRows
    from pgcli.training.trainer import Trainer

MAX_NAMED = 3  # images that are named in a message


def report(
    command: TrainOptions,
    trainer: Trainer,
    read: Sequence[TrainingRows],
    faults: Mapping[RowKey, str],
    seconds: float,
    screen: Screen,
) -> None:
    """Print what was learned and what to do with it; `read` are the rows, and those of `--eval`."""
    folder, progress = command.folder, trainer.progress
    facts = [
        ("model", str(folder)),
        ("rows", f"{len(read[0]):,}"),
        ("steps", f"{progress.step:,} in {duration(seconds)}"),
    ]
    if progress.best:
        best = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}"
            for name, value in progress.best.items()
            if name != "step"
        )
        facts.append(("best", f"step {progress.best['step']:,}: {best}"))
    screen.table(facts)
    if faults:
        from pgcli.training.rows import IMAGE_ID

        lost = sum(one.count_lost(faults) for one in read)
        lost += sum(len(key) > IMAGE_ID for key in faults)
        named = "; ".join(f"{key[0]}: {why}" for key, why in [*faults.items()][:MAX_NAMED])
        more = "; ..." * (len(faults) > MAX_NAMED)
        screen.info(f"{lost:,} row{'s' * (lost != 1)} could not be used: {named}{more}")
    screen.info(f"{folder} has what was trained", hint=use_of(command))


def use_of(command: TrainOptions) -> str:
    """A command that loads what was trained."""
    name = shlex.quote(str(command.folder))
    if command.task == "classify":
        return f"pgcli classify photos --model {name}"
    if command.task == "contrastive":
        return f'pgcli score photos --model {name} --text "a red star"'
    if command.method == "lora":
        name = f"{shlex.quote(command.model or '')} --adapter {name}"
    return f'pgcli ask photos --model {name} --prompt "..."'
