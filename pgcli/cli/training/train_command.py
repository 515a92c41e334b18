"""The options of a command line of `train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgcli.cli.options.training import (
    EvaluationOptions,
    LearningOptions,
    TrainingInputOptions,
    TrainingModelOptions,
    TrainingOutputOptions,
)
from pgcli.errors import UsageError


@dataclass(frozen=True)
class TrainCommand:
    """The options of a command line."""

    sources: Sequence[str]
    learning: LearningOptions
    evaluation: EvaluationOptions
    model: TrainingModelOptions
    input: TrainingInputOptions
    output: TrainingOutputOptions

    @property
    def column(self) -> str:
        """The column of what is learned."""
        is_contrastive = self.learning.task == "contrastive"
        return self.input.text_column if is_contrastive else self.input.label_column

    @property
    def folder(self) -> Path:
        """The folder of the results. Raises UsageError if none is given."""
        if self.output.output in (None, "-"):
            raise UsageError("train writes a model", hint="name its folder: -o runs/model")
        return Path(self.output.output or "").expanduser()
