"""What the trainer asks of a task: a model, its batches, their loss and its evaluation."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn


class SampleAnswer(NamedTuple):
    """An answer of the model beside the true one."""

    id: str
    prompt: str
    answer: str
    truth: str


class TrainingTask(Protocol):
    """What is learned from what. The trainer knows nothing else about the model or its data.

    A task that generates text may have `samples`, a few `SampleAnswer` of its last evaluation.
    """

    @property
    def model(self) -> nn.Module:
        """The model; parameters that require no gradient stay as they are and are not saved."""

    def batches(self, first: int, stop: int) -> Generator[Any]:
        """The batches of the steps from `first` to before `stop`, each a function of its step."""

    def weight(self, batch: Any) -> float:
        """What the losses of the batch's rows are averaged over: its number of rows or tokens."""

    def backward(self, batch: Any, total: float) -> Mapping[str, float]:
        """Add the gradients of the sum of the rows' losses, divided by `total`.

        The batch is this process's part of an update, and `total` is the sum of the weights of all
        parts. Returns `loss`, `rows` and other metrics as parts of sums too: gradients and metrics
        of the update are the sums of those of the processes.
        """

    def evaluate(self) -> Mapping[str, float]:
        """`loss` and the task's metrics on rows that are not trained on."""

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        """What evaluations are compared by: the best one has the largest."""

    def save(self, folder: Path) -> None:
        """Write the model into the folder as the commands load it."""
