"""Runs the trainer with its progress and evaluations shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.ui.console import Screen

if TYPE_CHECKING:
    from pgcli.training.trainer import Trainer


def run_trainer(trainer: Trainer, screen: Screen) -> bool:
    """Run the trainer with its progress shown, until it ends or a signal comes."""
    steps, done = trainer.options.steps, trainer.progress.step
    if done:
        screen.info(f"{done:,} of {steps:,} steps are done already")

    def on_signal() -> None:
        screen.info("ending after this step; the same command goes on")

    with screen.progress("training", steps, initial=done, unit="steps") as progress:

        def on_status() -> None:
            screen.info(progress.line())

        with GracefulShutdown(on_signal, on_status, pipes=False) as shutdown:

            def on_update(line: Mapping[str, Any]) -> None:
                progress.advance()
                if "eval_loss" in line:
                    screen.info(evaluation_line(line))

            is_complete = trainer.run(should_stop=shutdown.should_stop, on_update=on_update)
    if not is_complete:  # any process may have had the signal
        shutdown.signum = trainer.processes.largest(shutdown.signum or 0) or None
    shutdown.raise_if_requested()
    return is_complete


def evaluation_line(line: Mapping[str, Any]) -> str:
    """`step 100: loss 1.2, evaluation: loss 1.3, accuracy 0.7`."""
    found = ", ".join(
        f"{name.removeprefix('eval_').replace('_', ' ')} {value:.4g}"
        for name, value in line.items()
        if name.startswith("eval_")
    )
    loss = "" if line["loss"] is None else f"loss {line['loss']:.4g}; "
    return f"step {line['step']:,}: {loss}evaluation: {found}"
