"""Notices that a model learns its rows by heart: the evaluation loss rises, the other one falls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVALUATIONS = 3


@dataclass
class OverfittingWatch:
    """Compares each evaluation with the one before, given the lines of the metrics in order.

    `rises` counts the evaluations in a row whose loss has risen while the mean training loss since
    the evaluation before has fallen.
    """

    rises: int = 0
    _loss_sum: float = 0.0
    _updates: int = 0
    _before: tuple[float, float] | None = None

    def add(self, line: Mapping[str, Any]) -> bool:
        """Whether this evaluation is the third in a row that has risen; said once for a series."""
        if line["loss"] is not None:
            self._loss_sum += line["loss"]
            self._updates += 1
        if "eval_loss" not in line or not self._updates:
            return False
        training, evaluation = self._loss_sum / self._updates, line["eval_loss"]
        before, self._before = self._before, (training, evaluation)
        self._loss_sum, self._updates = 0.0, 0
        is_rise = before is not None and training < before[0] and evaluation > before[1]
        self.rises = self.rises + 1 if is_rise else 0
        return self.rises == EVALUATIONS
