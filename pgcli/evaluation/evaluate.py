"""Evaluates joined rows: a file, groups of its rows, two files, and a page of the worst rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pgcli.errors import NoInputError, UsageError
from pgcli.evaluation.join import JoinedFile
from pgcli.evaluation.measures import (
    Estimate,
    JoinedRow,
    Measure,
    RowRatio,
    estimates,
    image_numbers,
    measures,
    metrics_of,
    paired_differences,
    value_of,
)
from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import BOX_TASKS, Box, Mask
from pgcli.results.gallery import RowGroup, write_gallery
from pgcli.results.image_locator import ImageLocator
from pgcli.results.options import GalleryOptions
from pgcli.rows import box_to_dict, mask_to_dict, round6

MAX_GROUPS = 1000
NO_VALUE = "(none)"
TRUTH = "truth"
HIDDEN = frozenset({"embedding"})  # columns that the page does not show
#: The measure that scores rows, if it is not the metric's first one.
SCORES = {"ap": "f1@0.5"}


@dataclass(frozen=True)
class MetricRows:
    """The rows of a file that a metric is computed on, by their numbers, and their measures."""

    metric: str
    numbers: np.ndarray
    measures: Sequence[Measure]


@dataclass(frozen=True)
class Evaluation:
    """The estimate of each measure of a file, the numbers of missing and surplus rows, and groups.

    `measured` are the measures of the file's rows; a group has some of these rows.
    """

    joined: JoinedFile
    measured: Sequence[MetricRows]
    metrics: dict[str, Estimate]
    missing: int
    surplus: int
    groups: dict[str, Evaluation] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The evaluation as a JSON object; NaN is null."""
        values: dict[str, Any] = {
            "metrics": {name: as_json(estimate) for name, estimate in self.metrics.items()},
            "missing": self.missing,
            "surplus": self.surplus,
        }
        if self.groups:
            values["groups"] = {name: group.as_json() for name, group in self.groups.items()}
        return values


def as_json(estimate: Estimate) -> dict[str, float | int | None]:
    """An estimate as plain values."""
    numbers = {name: getattr(estimate, name) for name in ("value", "low", "high")}
    known = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
    return known | {"rows": estimate.rows}


def measure_rows(
    rows: Sequence[JoinedRow], metric: str = "auto", texts: str | None = None
) -> list[MetricRows]:
    """The measures of a metric of all rows; with `auto` of each task's, by what its truth says.

    `texts` is the file of the texts' embeddings, for retrieval. Raises UsageError where rows or
    truth lack what a metric needs.
    """
    numbers: dict[str, list[int]] = {metric: [*range(len(rows))]}
    if metric == "auto":
        numbers = {}
        for task in dict.fromkeys(row.task for row in rows):
            own = [number for number, row in enumerate(rows) if row.task == task]
            for name in metrics_of(task, [rows[number] for number in own]):
                numbers.setdefault(name, []).extend(own)
    return [
        MetricRows(name, np.array(own), measures(name, [rows[number] for number in own], texts))
        for name, own in ((name, sorted(own)) for name, own in numbers.items())
    ]


def measured_values(rows: Sequence[JoinedRow], metric: str = "auto") -> dict[str, float]:
    """The finite values of a metric's measures, by name."""
    values = {
        measure.name: value_of(measure, len(chosen.numbers))
        for chosen in measure_rows(rows, metric)
        for measure in chosen.measures
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def evaluate(
    joined: JoinedFile, metric: str, texts: str | None = None, column: str | None = None
) -> Evaluation:
    """The estimates of a file and, with a column, of the rows with each of its values.

    Raises the errors of `measure_rows`, and UsageError for a column without or with many values.
    """
    measured = measure_rows(joined.rows, metric, texts)
    image_N = image_numbers([row.image for row in joined.rows])
    metrics = estimate_rows(image_N, measured)
    groups = {}
    for value, numbers in rows_by_value(joined.rows, column).items() if column is not None else ():
        own = [joined.rows[number] for number in numbers]
        missing = sum(row.row is None for row in own)
        surplus = sum(row.truth is None for row in own)
        estimated = estimate_rows(image_N, measured, numbers)
        groups[value] = Evaluation(joined, measured, estimated, missing, surplus)
    return Evaluation(joined, measured, metrics, joined.missing, joined.surplus, groups)


def estimate_rows(
    image_N: np.ndarray, measured: Sequence[MetricRows], numbers: Sequence[int] | None = None
) -> dict[str, Estimate]:
    """The estimates of the rows with these numbers, or of all; `image_N` has their images."""
    metrics: dict[str, Estimate] = {}
    if numbers is not None:
        image_N, rows_N = np.full(len(image_N), -1), image_N
        image_N[numbers] = rows_N[numbers]
    for chosen in measured:
        own = image_N[chosen.numbers]
        if (own >= 0).any():
            names = [measure.name for measure in chosen.measures]
            metrics |= dict(zip(names, estimates(chosen.measures, own), strict=True))
    return metrics


def rows_by_value(rows: Sequence[JoinedRow], column: str) -> dict[str, list[int]]:
    """The numbers of the rows with each value of a column. Raises UsageError."""
    values = [column_value(row, column, is_grouped=True) for row in rows]
    if all(value is None for value in values):
        known = dict.fromkeys(
            name
            for row in rows[:100]
            for name in (*(row.row or ()), *(row.truth.columns if row.truth else ()))
            if any(column_value(row, name) is not None for row in rows[:100])
        )
        raise UsageError(
            f"--by {column}: neither rows nor ground truth have this column with texts or numbers",
            hint=f"columns with texts and numbers are: {', '.join(known)}",
        )
    groups: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        groups.setdefault(NO_VALUE if value is None else str(value), []).append(number)
    if len(groups) > MAX_GROUPS:
        raise UsageError(
            f"--by {column}: the column has {len(groups):,} different values",
            hint="name a column with few values",
        )
    return dict(sorted(groups.items()))


def column_value(row: JoinedRow, column: str, *, is_grouped: bool = False) -> Any:
    """The value of a column that the row or its truth has; None without.

    Raises UsageError for several values that rows are to be grouped by.
    """
    value = None if row.row is None else row.row.get(column)
    if value is None and row.truth is not None:
        value = row.truth.columns.get(column)
    if isinstance(value, tuple) and is_grouped:
        raise UsageError(
            f"--by {column}: rows of the truth with the id {row.id!r} and the same prompt have "
            f"different values: {', '.join(map(str, value))}",
            hint="name a column with one value for each image and prompt",
        )
    return value if isinstance(value, str | int | float) else None


def compare_files(
    first: JoinedFile, second: JoinedFile, metric: str, texts: str | None
) -> dict[str, Estimate]:
    """The differences of two files with the same rows: the second minus the first.

    Raises UsageError if the files have different metrics.
    """
    pair = [measure_rows(file.rows, metric, texts) for file in (first, second)]
    names = [[measure.name for chosen in parts for measure in chosen.measures] for parts in pair]
    numbers = [[chosen.numbers.tolist() for chosen in parts] for parts in pair]
    if names[0] != names[1] or numbers[0] != numbers[1]:
        raise UsageError(
            f"the files have different metrics: {', '.join(names[0])}, and {', '.join(names[1])}",
            hint="--metric names one for both",
        )
    changes: list[Estimate] = []
    for before, after in zip(*pair, strict=True):
        image_N = image_numbers([first.rows[number].image for number in before.numbers])
        changes += paired_differences(before.measures, after.measures, image_N)
    return dict(zip(names[0], changes, strict=True))


def write_worst_rows(
    evaluations: Sequence[Evaluation],
    differences: Mapping[str, Estimate],
    options: GalleryOptions,
    locator: ImageLocator,
) -> None:
    """Write the page: the rows of the files beside the truth, lowest scores of the last file first.

    Raises the errors of `write_gallery`.
    """
    last = evaluations[-1]
    scores = {key: score for key, (_, score) in row_scores(last).items()}
    rows = [row for row in last.joined.rows if row.row is not None]
    worst = sorted(rows, key=lambda row: scores.get(row.key, np.inf))[: options.limit]
    if not worst:
        raise NoInputError(f"no rows of {last.joined.name} to show", hint="omit --view")
    groups = [scored_rows(evaluation, worst) for evaluation in evaluations]
    true = [truth_row(row) for row in worst if row.truth is not None]
    groups.append(RowGroup(last.joined.path, TRUTH, chosen=true))
    files = [{"name": file.joined.name, **file.as_json()} for file in evaluations]
    summary = {
        "scores": sorted({name for name, _ in row_scores(last).values()}),
        "files": files,
        "differences": {name: as_json(change) for name, change in differences.items()},
    }
    write_gallery(groups, options, locator, evaluation=summary)


def row_scores(evaluation: Evaluation) -> dict[tuple[str, str | None], tuple[str, float]]:
    """The name and value of each scored row's score, by the key of the row."""
    scores: dict[tuple[str, str | None], tuple[str, float]] = {}
    for chosen in evaluation.measured:
        ratios = {m.name: m for m in chosen.measures if isinstance(m, RowRatio)}
        measure = ratios[SCORES.get(chosen.metric, next(iter(ratios)))]
        for number, score in zip(chosen.numbers, measure.row_scores().tolist(), strict=True):
            # an empty answer is right where the truth is empty
            value = 1.0 if np.isnan(score) else score
            scores.setdefault(evaluation.joined.rows[number].key, (measure.name, value))
    return scores


def scored_rows(evaluation: Evaluation, worst: Sequence[JoinedRow]) -> RowGroup:
    """The file's rows with the keys of the worst rows, and their scores."""
    rows = {row.key: row for row in evaluation.joined.rows if row.row is not None}
    scores = row_scores(evaluation)
    chosen = []
    for key in (row.key for row in worst if row.key in rows):
        name, score = scores[key]
        row = rows[key].row or {}
        known = {column: value for column, value in row.items() if column not in HIDDEN}
        if row.get("boxes"):
            known["boxes"] = [box_to_dict(box) for box in rows[key].boxes]
        chosen.append(known | {name: round6(score)})
    return RowGroup(evaluation.joined.path, evaluation.joined.path.name, chosen=chosen)


def truth_row(joined: JoinedRow) -> dict[str, Any]:
    """The truth as a row of the same image and prompt."""
    row, truth = joined.row or {}, joined.truth or LabelledImage()
    known = {name: row.get(name) for name in ("index", "id", "image", "width", "height")}
    is_boxes = joined.task in BOX_TASKS and truth.boxes is not None
    masks = [mask and mask_to_dict(Mask((), mask)) for mask in truth.masks or ()]
    return known | {
        "task": row.get("task"),
        "prompt": row.get("prompt"),
        "answer": None if is_boxes else truth_text(truth),
        "boxes": [box_to_dict(Box(box.label, *box.corners, 1.0)) for box in truth.boxes or ()],
        "masks": masks,
        "model": TRUTH,
        "error": None,
    }


def truth_text(truth: LabelledImage) -> str:
    """The distinct true answers, one per line, with their counts."""
    counts = Counter(truth.answers)
    return "\n".join(f"{text} ({n} times)" if n > 1 else text for text, n in counts.items())
