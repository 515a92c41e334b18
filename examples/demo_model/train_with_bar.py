"""Runs the trainer of a built-in model with a bar, for some minutes at most."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from tqdm import tqdm

from pgcli.printable import printable
from pgcli.training.trainer import Trainer


def train_with_bar(trainer: Trainer, minutes: float) -> None:
    """Train to the last step. Raises SystemExit if `minutes` have passed before."""
    deadline, steps = monotonic() + 60 * minutes, trainer.options.steps
    with tqdm(
        total=steps,
        initial=trainer.progress.step,
        unit="step",
        mininterval=1,
        disable=not trainer.processes.is_first,
    ) as bar:

        def show(line: Mapping[str, Any]) -> None:
            bar.update()
            bar.set_postfix(loss=f"{line['loss']:.3f}")

        if not trainer.run(should_stop=lambda: monotonic() > deadline, on_update=show):
            message = f"{trainer.folder} is at step {trainer.progress.step} of {steps}"
            raise SystemExit(printable(f"{message}; rerun the command to resume"))
