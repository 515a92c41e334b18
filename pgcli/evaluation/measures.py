"""Rows joined with their truth, the metrics of a task, and measures over bootstrap resamples.

Letters of shapes: N rows, U images, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import BOX_TASKS, Box, Rle, Task

#: The columns of the truth and of rows that name an image; VQA's files have the first.
IMAGE_COLUMNS = ("image_id", "image")
RESAMPLES = 1000
SEED = 0
PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class JoinedRow:
    """A row of results and its truth; `row` is None for a missing row, `truth` for a surplus one.

    `prompt` is the row's, or the truth's for a missing row, and `task` the task of the prompt.
    `boxes` and `masks` are the row's; empty for a missing row. Boxes in `row` are objects, too.
    """

    id: str
    prompt: str | None
    row: Mapping[str, Any] | None
    truth: LabelledImage | None
    boxes: tuple[Box, ...] = ()
    masks: tuple[Rle | None, ...] = ()
    task: str = ""

    @property
    def key(self) -> tuple[str, str | None]:
        """The id and the prompt."""
        return self.id, self.prompt

    @property
    def image(self) -> str:
        """The name of the image, which rows may share; the id without another name."""
        columns = self.truth.columns if self.truth is not None else {}
        for values in (columns, self.row or {}):
            for name in IMAGE_COLUMNS:
                value = values.get(name)
                if value not in (None, ""):
                    return str(value[0] if isinstance(value, tuple) else value)
        return self.id

    @property
    def answer(self) -> str | None:
        """The answer; None for missing and failed rows."""
        answer = None if self.row is None else self.row.get("answer")
        return answer if isinstance(answer, str) else None

    @property
    def true_answers(self) -> tuple[str, ...]:
        """The true answers; empty for a surplus row."""
        return () if self.truth is None else self.truth.answers

    @property
    def true_boxes(self) -> tuple[Box, ...]:
        """The true boxes; empty for a surplus row."""
        return () if self.truth is None else self.truth.boxes or ()

    def best(self, similarity: Callable[[str, str], float]) -> float:
        """The highest similarity of the answer and a true one; 0 without an answer or a truth."""
        if self.answer is None:
            return 0.0
        return max((similarity(self.answer, truth) for truth in self.true_answers), default=0.0)


class Measure(Protocol):
    """A number about rows, between 0 and 1 if `is_biased`.

    At most `max_resamples` resamples are computed, as some take long. The values over resamples of
    a measure that `is_biased` are shifted to the mean of all rows.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_resamples(self) -> int: ...

    @property
    def is_biased(self) -> bool: ...

    def by_image(self, image_N: np.ndarray, images: int) -> Self:
        """The measure with the image of each row in place of the row; without rows of -1."""
        ...

    def values(self, weights: Iterable[np.ndarray]) -> np.ndarray:
        """The value for each weight_U, which says how often each image counts; NaN for none."""
        ...


@dataclass(frozen=True)
class RowRatio:
    """A sum over rows divided by another: a mean where each row's denominator is 1."""

    name: str
    numerator_N: np.ndarray
    denominator_N: np.ndarray
    max_resamples: int = RESAMPLES
    is_biased: bool = False

    def by_image(self, image_N: np.ndarray, images: int) -> Self:
        kept = np.flatnonzero(image_N >= 0)
        numerator_U, denominator_U = (
            np.bincount(image_N[kept], values_N[kept], images)
            for values_N in (self.numerator_N, self.denominator_N)
        )
        return replace(self, numerator_N=numerator_U, denominator_N=denominator_U)

    def values(self, weights: Iterable[np.ndarray]) -> np.ndarray:
        number_N2 = np.column_stack((self.numerator_N, self.denominator_N))
        return quotient(*np.array([weight_U @ number_N2 for weight_U in weights]).T)

    def row_scores(self) -> np.ndarray:
        """The value of each row alone, (N,)."""
        return quotient(self.numerator_N, self.denominator_N)


def ratio(name: str, numerators: Any, denominators: Any) -> RowRatio:
    """The ratio of the sums of two numbers of each row."""
    return RowRatio(name, np.asarray(numerators, float), np.asarray(denominators, float))


def mean(name: str, values: Sequence[float]) -> RowRatio:
    """The mean of a number of each row."""
    return ratio(name, values, np.ones(len(values)))


def quotient(numerator_N: np.ndarray, denominator_N: np.ndarray) -> np.ndarray:
    """The numerators divided by the denominators, (N,); NaN for zero of zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        quotients_N: np.ndarray = numerator_N / denominator_N
    return quotients_N


@dataclass(frozen=True)
class Estimate:
    """The value of a measure, and the bounds of its 95 % interval; NaN if undefined."""

    value: float
    low: float
    high: float
    rows: int


def value_of(measure: Measure, images: int) -> float:
    """The value of a measure by image, or by row, of so many images or rows."""
    return float(measure.values([np.ones(images)])[0])


def estimates(measures: Sequence[Measure], image_N: np.ndarray) -> list[Estimate]:
    """The value and the interval of each measure; `image_N` has `image_numbers` of the rows.

    An image is drawn with all of its rows, as the answers about it are not independent. Rows of the
    image -1 do not count.
    """
    rows = int(np.count_nonzero(image_N >= 0))
    return [estimate(*sample, rows) for sample in resampled(measures, image_N)]


def paired_differences(
    first: Sequence[Measure], second: Sequence[Measure], image_N: np.ndarray
) -> list[Estimate]:
    """The second measure minus the first, of the same rows, with intervals of paired resampling."""
    changes = []
    pairs = zip(resampled(first, image_N), resampled(second, image_N), strict=True)
    for (before, before_R), (after, after_R) in pairs:
        count = min(len(before_R), len(after_R))
        changes.append(estimate(after - before, after_R[:count] - before_R[:count], len(image_N)))
    return changes


def image_numbers(images: Sequence[Hashable]) -> np.ndarray:
    """The number of the image of each row, (N,), in the order of their first rows."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(image, len(numbers)) for image in images], np.int64)


def resampled(measures: Sequence[Measure], image_N: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """The value of each measure, and its values over resamples, which are the same at each call."""
    kept = np.flatnonzero(image_N >= 0)
    _, first_U, image_K = np.unique(image_N[kept], return_index=True, return_inverse=True)
    image_N, count = np.full(len(image_N), -1), len(first_U)
    image_N[kept] = np.argsort(np.argsort(first_U))[image_K]  # in the order of their first rows
    samples = []
    for measure in measures:
        own = measure.by_image(image_N, count)
        value = value_of(own, count)
        values_R = own.values(islice(resamples(count), own.max_resamples))
        samples.append((value, unbiased(own, value, values_R)))
    return samples


def unbiased(measure: Measure, value: float, values_R: np.ndarray) -> np.ndarray:
    """The resampled values of a measure with this value, without their bias."""
    known_R = values_R[~np.isnan(values_R)]
    if not measure.is_biased or not len(known_R):
        return values_R
    shifted_R: np.ndarray = values_R - known_R.mean() + value
    return shifted_R.clip(0.0, 1.0)


def resamples(images: int) -> Iterator[np.ndarray]:
    """How often each image is in each resample, (U,)."""
    random = np.random.default_rng(SEED)
    for _ in range(RESAMPLES):
        draw = random.integers(0, images, images, np.int32)
        yield np.bincount(draw, minlength=images).astype(np.float64)


def estimate(value: float, values_R: np.ndarray, rows: int) -> Estimate:
    """The value, and the bounds of 95 % of the resampled values, without NaN."""
    known_R = values_R[~np.isnan(values_R)]
    low, high = np.percentile(known_R, PERCENTILES) if len(known_R) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high), rows)


class Metric(NamedTuple):
    """What a metric needs of the truth (a key of HINTS), and the function from rows to measures.

    The function raises UsageError for unsuitable rows.
    """

    needs: str
    measures: Callable[..., list[Measure]]


HINTS = {
    "answers": "--answer-column NAME names the column of the answer",
    "boxes": "'boxes' is a list of {label, xmin, ymin, xmax, ymax} in pixels, and [] for none",
    "masks": "'masks' is a list of masks, one for each of 'boxes'",
}
#: Tasks by the first word of their prompts.
PROMPT_TASKS: Mapping[str, Task] = {
    "caption": "caption",
    "detect": "detect",
    "segment": "segment",
    "ocr": "ocr",
}
VQA_ANSWERS = 10  # of a question, by which `auto` recognizes VQA
YES_NO = ("yes", "no")


def measures(metric: str, rows: Sequence[JoinedRow], texts: str | None = None) -> list[Measure]:
    """The measures of a metric; retrieval takes the file of the texts' embeddings.

    Raises UsageError for rows without the data that the metric needs.
    """
    needs, measure = registry.load("metrics", metric)
    for row in rows:
        if row.truth is not None and not is_known(row.truth, needs):
            columns = ", ".join(row.truth.columns) or "none"
            raise UsageError(
                f"--metric {metric} needs {needs}, and the truth has none for {row.id!r}",
                hint=f"its columns with a value are: {columns}; {HINTS[needs]}",
            )
    own: list[Measure] = measure(rows, texts) if metric == "retrieval" else measure(rows)
    return own


def is_known(truth: LabelledImage, needs: str) -> bool:
    """Whether the truth has what a metric needs."""
    return bool(truth.answers) if needs == "answers" else getattr(truth, needs) is not None


def task_of_prompt(prompt: str | None) -> Task:
    """The task of a prompt, by its first word."""
    return PROMPT_TASKS.get((prompt or "").partition(" ")[0], "ask")


def metrics_of(task: str, rows: Sequence[JoinedRow]) -> list[str]:
    """The metrics of rows of one task, by what their truth says."""
    truths = [row.truth for row in rows if row.truth is not None]
    if task in ("embed", "score"):
        return ["retrieval"]
    if task == "classify":
        return ["accuracy"]
    if task == "segment" and has_pixels(rows) and any(any(truth.masks or ()) for truth in truths):
        return ["miou"]
    if task in BOX_TASKS:
        is_single = bool(truths) and all(len(truth.boxes or ()) == 1 for truth in truths)
        return ["ap", "acc@0.5"] if is_single else ["ap"]
    if task == "caption":
        return ["cider"]
    if is_yes_no(rows):
        return ["accuracy"]
    if truths and all(len(truth.answers) == VQA_ANSWERS for truth in truths):
        return ["vqa"]
    has_several = any(len(truth.answers) > 1 for truth in truths)
    return ["anls" if task == "ocr" or has_several else "exact"]


def has_pixels(rows: Sequence[JoinedRow]) -> bool:
    """Whether a mask of the rows has pixels."""
    return any(any(row.masks) for row in rows)


def is_yes_no(rows: Sequence[JoinedRow]) -> bool:
    """Whether all true answers are yes or no."""
    truths = [row.truth.answers for row in rows if row.truth is not None]
    return bool(truths) and all(len(t) == 1 and t[0].strip().lower() in YES_NO for t in truths)
