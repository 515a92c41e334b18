"""Relaxed accuracy of answers about charts, as in ChartQA."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric

MAX_RELATIVE_ERROR = 0.05


def measure_relaxed(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer is a true one, or a number that is close to it."""
    return [mean("relaxed", [row.best(is_relaxed_match) for row in rows])]


RELAXED = Metric("answers", measure_relaxed)


def is_relaxed_match(answer: str, truth: str) -> float:
    """1 if both are equal, ignoring case, or are numbers that differ by at most 5 percent, else 0.

    A percentage is a hundredth of its number, and a true 0 is compared as text, as in ChartQA.
    """
    answer, truth = answer.strip(), truth.strip()
    value, target = stated_number(answer), stated_number(truth)
    if value is not None and target:
        return float(abs(value - target) / abs(target) <= MAX_RELATIVE_ERROR)
    return float(answer.lower() == truth.lower())


def stated_number(text: str) -> float | None:
    """The number that a text states, also as a percentage; None if it states none."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
