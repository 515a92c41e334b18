"""Runs the trainer with its progress and evaluations shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import StageProgress
from pgcli.run.progress.shutdown import GracefulShutdown

if TYPE_CHECKING:
    from pgcli.training.overfitting import OverfittingWatch
    from pgcli.training.trainer import Trainer

SHOWN_UPDATES = 20  # the loss on the screen is the mean of so many
MAX_MEASURES = 5


def run_trainer(trainer: Trainer, screen: Screen) -> bool:
    """Run the trainer with its progress shown, until it ends or a signal comes."""
    from pgcli.training.metrics_file import METRICS, read_metrics
    from pgcli.training.overfitting import OverfittingWatch

    steps, done = trainer.options.steps, trainer.progress.step
    if done:
        screen.info(f"{done:,} of {steps:,} steps are done already")
    watch = OverfittingWatch()
    for line in read_metrics(trainer.folder / METRICS):
        if line["step"] <= done:
            watch.add(line)

    def on_signal() -> None:
        screen.info("ending after this step; the same command goes on")

    with screen.progress("training", steps, initial=done, unit="steps") as progress:
        display = TrainingDisplay(screen, progress, watch)

        def on_status() -> None:
            screen.info(progress.line())

        with GracefulShutdown(on_signal, on_status, pipes=False) as shutdown:
            is_complete = trainer.run(should_stop=shutdown.should_stop, on_update=display.update)
    if not is_complete:  # any process may have had the signal
        shutdown.signum = trainer.processes.largest(shutdown.signum or 0) or None
    shutdown.raise_if_requested()
    return is_complete


@dataclass
class TrainingDisplay:
    """Shows each line of the metrics, and above the progress what an evaluation found."""

    screen: Screen
    progress: StageProgress
    watch: OverfittingWatch
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=SHOWN_UPDATES))

    def update(self, line: Mapping[str, Any]) -> None:
        """Show a line of the metrics."""
        if line["loss"] is not None:
            self._losses.append(line["loss"])
        self.progress.details = details(line, self._losses)
        self.progress.advance()
        is_overfitting = self.watch.add(line)
        if "eval_loss" not in line:
            return
        self.screen.info(evaluation_line(line))
        if is_overfitting:
            self.screen.info(
                f"the evaluation loss has risen {self.watch.rises} times in a row while the "
                "training loss fell: the model overfits",
                hint="the best weights are kept; --patience 3 stops here, fewer --epochs or more "
                "rows avoid it",
            )


def details(line: Mapping[str, Any], losses: Sequence[float]) -> str:
    """`loss 1.234, learning rate 1e-05, gradient norm 0.5, 900 tokens/s, 12 images/s, 3.1 GB`."""
    norm, loss = line["gradient_norm"], sum(losses) / len(losses) if losses else None
    parts = [
        "" if loss is None else f"loss {loss:.4g}",
        f"learning rate {line['learning_rate']:.3g}",
        "" if norm is None else f"gradient norm {norm:.3g}",
        *(
            f"{line[name]:,.{0 if line[name] >= 100 else 1}f} {unit}/s"
            for name, unit in (("tokens_per_second", "tokens"), ("rows_per_second", "images"))
            if name in line
        ),
        f"{line['memory_mb'] / 1e3:.1f} GB",
    ]
    return ", ".join(filter(None, parts))


def evaluation_line(line: Mapping[str, Any]) -> str:
    """`step 100: loss 1.2; evaluation: loss 1.3, accuracy 0.7`, of many measures the first ones."""
    names = [name for name in line if name.startswith("eval_")]
    found = ", ".join(
        f"{name.removeprefix('eval_').replace('_', ' ')} {line[name]:.4g}"
        for name in names[:MAX_MEASURES]
    )
    loss = "" if line["loss"] is None else f"loss {line['loss']:.4g}; "
    return f"step {line['step']:,}: {loss}evaluation: {found}"
