"""The share of answers that are equal to a true one."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric


def measure_exact(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer is a true one, ignoring outer blanks."""
    return [mean("exact", [row.best(is_exact) for row in rows])]


EXACT = Metric("answers", measure_exact)


def is_exact(answer: str, truth: str) -> float:
    """1 if both are equal, ignoring outer blanks, else 0."""
    return float(answer.strip() == truth.strip())
