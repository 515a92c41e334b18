"""Reads the status of a training run from its folder, without importing PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.output.reader import state_folder
from pgcli.run.state.owner import LOCK
from pgcli.stores import LocalStore
from pgcli.stores.files import read_json
from pgcli.training.metrics_file import METRICS, read_metrics

RUN_FILE = "run.json"


@dataclass(frozen=True)
class TrainingStatus:
    """The status of a training run. `state` is running, complete or stopped.

    `step` of `steps` updates are done; `loss` is the latest, and `best` has the values of the best
    evaluation.
    """

    output: str
    state: str
    step: int
    steps: int | None
    loss: float | None
    best: dict[str, float]

    def facts(self) -> list[tuple[str, str]]:
        """The status as names and texts."""
        of = f" of {self.steps:,}" if self.steps else ""
        facts = [("output", self.output), ("state", self.state), ("steps", f"{self.step:,}{of}")]
        if self.loss is not None:
            facts.append(("loss", f"{self.loss:.4g}"))
        if self.best:
            values = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.best.items())
            facts.append(("best", ", ".join(values)))
        if self.state == "stopped":
            facts.append(("to resume", "run the same command again"))
        return facts


def read_training_status(output: str) -> TrainingStatus | None:
    """The status of the training run in a folder; None for another output."""
    folder = Path(output)
    record: dict[str, Any] | None = read_json(folder / RUN_FILE) if folder.is_dir() else None
    if record is None or "settings" not in record:
        return None
    lines, result = read_metrics(folder / METRICS), record.get("result", {})
    state = "complete" if result.get("complete") else "stopped"
    held = state_folder(folder)
    if held.is_dir() and LocalStore(held).is_locked(LOCK):
        state = "running"
    evaluations = [line for line in lines if "eval_loss" in line]
    best = result.get("best") or {
        name.removeprefix("eval_"): value
        for name, value in (evaluations[-1] if evaluations else {}).items()
        if name == "step" or name.startswith("eval_")
    }
    last = lines[-1] if lines else {}
    return TrainingStatus(
        output, state, last.get("step", 0), record.get("steps"), last.get("loss"), best
    )
