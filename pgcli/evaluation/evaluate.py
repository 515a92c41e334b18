"""Evaluates joined rows: the measures of one file, of groups of its rows, and of two files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.evaluation.calibration import Bin, CalibrationError
from pgcli.evaluation.choose_metrics import MetricChoice, choose, compute
from pgcli.evaluation.joined_file import JoinedFile
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import (
    Estimate,
    Measure,
    differences,
    estimates,
    image_numbers,
    values_once,
)

MAX_GROUPS = 1000
NO_VALUE = "(none)"


@dataclass(frozen=True)
class FileMeasures:
    """A joined file, and the measures of each metric that is chosen for some of its rows."""

    joined: JoinedFile
    by_choice: Sequence[tuple[MetricChoice, Sequence[Measure]]]

    @property
    def measures(self) -> list[Measure]:
        """All measures."""
        return [one for _, measures in self.by_choice for one in measures]

    def calibration(self) -> tuple[list[Bin], float]:
        """The calibration of boxes in bins, and its error; no bins where there are no boxes."""
        for measure in self.measures:
            if isinstance(measure, CalibrationError):
                error = values_once(measure, np.zeros(measure.rows, np.int64), 1)
                return measure.bins(), error
        return [], math.nan


@dataclass(frozen=True)
class Evaluation:
    """The estimate of each measure, the numbers of missing and surplus rows, and of groups."""

    metrics: dict[str, Estimate]
    missing: int
    surplus: int
    groups: dict[str, Evaluation] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The evaluation as JSON has it; NaN is null."""
        found: dict[str, Any] = {
            "metrics": {name: as_json(one) for name, one in self.metrics.items()},
            "missing": self.missing,
            "surplus": self.surplus,
        }
        if self.groups:
            found["groups"] = {name: one.as_json() for name, one in self.groups.items()}
        return found


def as_json(estimate: Estimate) -> dict[str, float | int | None]:
    """An estimate as plain values."""
    numbers = {name: getattr(estimate, name) for name in ("value", "low", "high")}
    return {name: one if math.isfinite(one) else None for name, one in numbers.items()} | {
        "rows": estimate.rows
    }


def measure_file(joined: JoinedFile, metric: str, texts: str | None, truth: str) -> FileMeasures:
    """The measures of a file."""
    choices = choose(joined, metric)
    return FileMeasures(joined, [(one, compute(one, joined.rows, texts, truth)) for one in choices])


def evaluate(file: FileMeasures, is_wanted: np.ndarray | None = None) -> Evaluation:
    """The estimates of a file's measures, or of some of its rows."""
    rows, is_whole = file.joined.rows, is_wanted is None
    is_wanted = np.ones(len(rows), bool) if is_wanted is None else is_wanted
    found: dict[str, Estimate] = {}
    for choice, measures in file.by_choice:
        chosen = [measure.select(is_wanted[choice.is_chosen]) for measure in measures]
        if not chosen[0].rows:
            continue
        image_N, images = image_numbers(ids_of(rows, choice.is_chosen & is_wanted))
        pairs = zip(chosen, estimates(chosen, image_N, images), strict=True)
        found |= {measure.name: estimate for measure, estimate in pairs}
    if is_whole:
        return Evaluation(found, file.joined.missing, file.joined.surplus)
    wanted = [rows[number] for number in np.flatnonzero(is_wanted).tolist()]
    missing = sum(row.row is None for row in wanted)
    return Evaluation(found, missing, sum(row.truth is None for row in wanted))


def ids_of(rows: Sequence[JoinedRow], is_chosen: np.ndarray) -> list[str]:
    """The ids of the chosen rows."""
    return [rows[number].id for number in np.flatnonzero(is_chosen).tolist()]


def evaluate_groups(file: FileMeasures, column: str) -> dict[str, Evaluation]:
    """The evaluations of the rows with each value of a column. Raises UsageError."""
    values = [value_of(row, column) for row in file.joined.rows]
    if all(value is None for value in values):
        rows = file.joined.rows[:100]
        columns = dict.fromkeys(
            name
            for row in rows
            for name in (*(row.row or ()), *(row.truth.columns if row.truth else ()))
        )
        with_values = [
            name for name in columns if any(value_of(row, name) is not None for row in rows)
        ]
        raise UsageError(
            f"--by {column}: neither the rows nor the truth have a text or a number in such a "
            "column",
            hint=f"columns with texts and numbers are: {', '.join(with_values)}",
        )
    names = [NO_VALUE if value is None else str(value) for value in values]
    groups = sorted(dict.fromkeys(names))
    if len(groups) > MAX_GROUPS:
        raise UsageError(
            f"--by {column}: it has {len(groups):,} values", hint="name a column with few values"
        )
    return {name: evaluate(file, np.array([one == name for one in names])) for name in groups}


def value_of(row: JoinedRow, column: str) -> Any:
    """The value of a column that the row or its truth has; None without."""
    value = None if row.row is None else row.row.get(column)
    if value is None and row.truth is not None:
        value = row.truth.columns.get(column)
    return value if isinstance(value, str | int | float) else None


def compare(first: FileMeasures, second: FileMeasures) -> dict[str, Estimate]:
    """The differences of two files with the same rows: the second minus the first."""
    found: dict[str, Estimate] = {}
    names = [[measure.name for measure in file.measures] for file in (first, second)]
    if names[0] != names[1]:
        raise UsageError(
            f"the files have other metrics: {', '.join(names[0])}, and {', '.join(names[1])}",
            hint="--metric names one for both",
        )
    for (choice, ones), (_, others) in zip(first.by_choice, second.by_choice, strict=True):
        image_N, images = image_numbers(ids_of(first.joined.rows, choice.is_chosen))
        pairs = zip(ones, differences(ones, others, image_N, images), strict=True)
        found |= {measure.name: difference for measure, difference in pairs}
    return found
