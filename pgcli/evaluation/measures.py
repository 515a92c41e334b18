"""Measures of rows, and their values over bootstrap resamples of the images.

Letters of shapes: N rows, K columns of numerators, U images, R resamples.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

RESAMPLES = 1000
SEED = 0
PERCENTILES = (2.5, 97.5)
MAX_WEIGHTS = 4_000_000  # in memory at a time


class Measure(Protocol):
    """A number about rows, between 0 and 1 if `is_biased`.

    At most `max_resamples` resamples are computed, as some take long. The values over resamples of
    a measure that `is_biased` are shifted so that their mean is that of all rows.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_resamples(self) -> int: ...

    @property
    def is_biased(self) -> bool: ...

    def select(self, rows: np.ndarray) -> Self:
        """The measure of the rows with these numbers."""
        ...

    def values(self, weights_RN: np.ndarray) -> np.ndarray:
        """The value with each row counted as often as its weight says, (R,); NaN for none."""
        ...


@dataclass(frozen=True)
class RowRatio:
    """A sum over rows divided by another: a mean where each row's denominator is 1.

    Of several columns of numerators, the absolute values of the sums are added.
    """

    name: str
    numerator_NK: np.ndarray
    denominator_N: np.ndarray
    max_resamples: int = RESAMPLES
    is_biased: bool = False

    def select(self, rows: np.ndarray) -> Self:
        numerator_NK, denominator_N = self.numerator_NK[rows], self.denominator_N[rows]
        return replace(self, numerator_NK=numerator_NK, denominator_N=denominator_N)

    def values(self, weights_RN: np.ndarray) -> np.ndarray:
        return quotient(weights_RN @ self.numerator_NK, weights_RN @ self.denominator_N)

    def row_scores(self) -> np.ndarray:
        """The value of each row alone, (N,)."""
        return quotient(self.numerator_NK, self.denominator_N)


def ratio(name: str, numerators: Any, denominators: Any) -> RowRatio:
    """The ratio of the sums of two numbers of each row; the first may be several, (N, K)."""
    numerator = np.asarray(numerators, np.float64)
    numerator_NK = numerator if numerator.ndim == 2 else numerator[:, None]
    return RowRatio(name, numerator_NK, np.asarray(denominators, np.float64))


def mean(name: str, values: Sequence[float]) -> RowRatio:
    """The mean of a number of each row."""
    return ratio(name, values, np.ones(len(values)))


def quotient(numerator_NK: np.ndarray, denominator_N: np.ndarray) -> np.ndarray:
    """The sums of absolute numerators divided by the denominators, (N,); NaN for zero of zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        quotients_N: np.ndarray = np.abs(numerator_NK).sum(axis=1) / denominator_N
    return quotients_N


@dataclass(frozen=True)
class Estimate:
    """The value of a measure, and the bounds of its 95 % interval; NaN if undefined."""

    value: float
    low: float
    high: float
    rows: int


def value_of(measure: Measure, rows: int) -> float:
    """The value of a measure of so many rows."""
    return float(measure.values(np.ones((1, rows)))[0])


def estimates(measures: Sequence[Measure], images: Sequence[Hashable]) -> list[Estimate]:
    """The value and the interval of each measure; `images` are the images of the rows."""
    rows = len(images)
    return [
        estimate(value_of(measure, rows), values_R, rows)
        for measure, values_R in zip(measures, resampled(measures, images), strict=True)
    ]


def paired_differences(
    first: Sequence[Measure], second: Sequence[Measure], images: Sequence[Hashable]
) -> list[Estimate]:
    """The second measure minus the first, of the same rows, with intervals of paired resampling."""
    rows, changes = len(images), []
    pairs = zip(first, second, resampled(first, images), resampled(second, images), strict=True)
    for before, after, before_R, after_R in pairs:
        count = min(len(before_R), len(after_R))
        change = value_of(after, rows) - value_of(before, rows)
        changes.append(estimate(change, after_R[:count] - before_R[:count], rows))
    return changes


def resampled(measures: Sequence[Measure], images: Sequence[Hashable]) -> list[np.ndarray]:
    """The values of each measure over resamples of the images, which are the same at each call.

    An image is drawn with all of its rows, as the answers about it are not independent.
    """
    numbers: dict[Hashable, int] = {}
    image_N = np.array([numbers.setdefault(image, len(numbers)) for image in images], np.int64)
    values: list[list[np.ndarray]] = [[] for _ in measures]
    done = 0
    for weights_RU in resamples(len(numbers), len(images)):
        for measure, known in zip(measures, values, strict=True):
            if (remaining := measure.max_resamples - done) > 0:
                known.append(measure.values(weights_RU[:remaining, image_N]))
        done += len(weights_RU)
    return [
        unbiased(measure, np.concatenate(known), len(images))
        for measure, known in zip(measures, values, strict=True)
    ]


def unbiased(measure: Measure, values_R: np.ndarray, rows: int) -> np.ndarray:
    """The resampled values of a measure of so many rows, without their bias."""
    known_R = values_R[~np.isnan(values_R)]
    if not measure.is_biased or not len(known_R):
        return values_R
    shifted_R: np.ndarray = values_R - known_R.mean() + value_of(measure, rows)
    return shifted_R.clip(0.0, 1.0)


def resamples(images: int, rows: int) -> Iterator[np.ndarray]:
    """The count of each image in each resample (R, U), in blocks of resamples."""
    random = np.random.default_rng(SEED)
    step = max(1, min(RESAMPLES, MAX_WEIGHTS // max(rows, 1)))
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        draws = (random.integers(0, images, images, np.int32) for _ in range(count))
        yield np.stack([np.bincount(draw, minlength=images) for draw in draws]).astype(np.float64)


def estimate(value: float, values_R: np.ndarray, rows: int) -> Estimate:
    """The value, and the bounds of 95 % of the resampled values, without NaN."""
    known_R = values_R[~np.isnan(values_R)]
    low, high = np.percentile(known_R, PERCENTILES) if len(known_R) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high), rows)
