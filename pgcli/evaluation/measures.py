"""Measures of rows, and their values over resamples of the images.

Letters of shapes: N rows, U images, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

RESAMPLES = 1000
SEED = 0
PERCENTILES = (2.5, 97.5)
MAX_WEIGHTS = 4_000_000  # in memory at a time


class Measure(Protocol):
    """A number about rows that are in a fixed order, each of one image.

    A measure computes at most `max_resamples` resamples, as some take long.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_resamples(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def row_scores(self) -> np.ndarray:
        """A number for each row (N,), lower where it is worse; NaN where it has none."""
        ...

    def select(self, is_chosen_N: np.ndarray) -> Self:
        """The measure of some of the rows."""
        ...

    def values(self, weights_RU: np.ndarray, image_N: np.ndarray) -> np.ndarray:
        """The value with each image counted as often as its weight says, (R,)."""
        ...


@dataclass(frozen=True)
class RowRatio:
    """A sum over rows divided by another: a mean where the latter counts rows; NaN if that is 0."""

    name: str
    numerator_N: np.ndarray
    denominator_N: np.ndarray
    max_resamples: int = RESAMPLES

    @classmethod
    def mean(cls, name: str, values: Sequence[float]) -> Self:
        """The mean of a value of each row."""
        return cls(name, np.array(values, np.float64), np.ones(len(values)))

    @property
    def rows(self) -> int:
        return len(self.numerator_N)

    def row_scores(self) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            scores: np.ndarray = self.numerator_N / self.denominator_N
        return scores

    def select(self, is_chosen_N: np.ndarray) -> Self:
        return replace(
            self,
            numerator_N=self.numerator_N[is_chosen_N],
            denominator_N=self.denominator_N[is_chosen_N],
        )

    def values(self, weights_RU: np.ndarray, image_N: np.ndarray) -> np.ndarray:
        images = weights_RU.shape[1]
        sums_U2 = np.stack(
            [np.bincount(image_N, one, images) for one in (self.numerator_N, self.denominator_N)], 1
        )
        sums_R2 = weights_RU @ sums_U2
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios: np.ndarray = sums_R2[:, 0] / sums_R2[:, 1]
        return ratios


@dataclass(frozen=True)
class Estimate:
    """The value of a measure, and the bounds of its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float
    rows: int


def values_once(measure: Measure, image_N: np.ndarray, images: int) -> float:
    """The value of a measure with each image counted once."""
    return float(measure.values(np.ones((1, images)), image_N)[0])


def resampled_values(
    measures: Sequence[Measure], image_N: np.ndarray, images: int
) -> list[np.ndarray]:
    """The values of each measure over resamples of the images, which are the same at each call."""
    found: list[list[np.ndarray]] = [[] for _ in measures]
    done = 0
    for weights_RU in resamples(images):
        for measure, parts in zip(measures, found, strict=True):
            more = max(0, measure.max_resamples - done)
            if more:
                parts.append(measure.values(weights_RU[:more], image_N))
        done += len(weights_RU)
    return [np.concatenate(parts) for parts in found]


def resamples(images: int) -> Iterator[np.ndarray]:
    """How often each image is drawn in each resample, (R, U), a few resamples at a time."""
    random = np.random.default_rng(SEED)
    step = max(1, min(RESAMPLES, MAX_WEIGHTS // max(images, 1)))
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        drawn = (random.integers(0, images, images, np.int32) for _ in range(count))
        yield np.stack([np.bincount(one, minlength=images) for one in drawn]).astype(np.float64)


def estimates(measures: Sequence[Measure], image_N: np.ndarray, images: int) -> list[Estimate]:
    """The value and the interval of each measure, by the percentiles of its resampled values."""
    return [
        Estimate(values_once(measure, image_N, images), *interval(values_R), measure.rows)
        for measure, values_R in zip(
            measures, resampled_values(measures, image_N, images), strict=True
        )
    ]


def differences(
    first: Sequence[Measure], second: Sequence[Measure], image_N: np.ndarray, images: int
) -> list[Estimate]:
    """The second measure minus the first, of the same rows, with intervals of paired resampling."""
    found = []
    resampled = [resampled_values(measures, image_N, images) for measures in (first, second)]
    for one, other, one_R, other_R in zip(first, second, *resampled, strict=True):
        count = min(len(one_R), len(other_R))
        value = values_once(other, image_N, images) - values_once(one, image_N, images)
        found.append(Estimate(value, *interval(other_R[:count] - one_R[:count]), one.rows))
    return found


def interval(values_R: np.ndarray) -> tuple[float, float]:
    """The bounds between which 95 % of the values are, without NaN; NaN if there is no value."""
    known_R = values_R[~np.isnan(values_R)]
    if not len(known_R):
        return float("nan"), float("nan")
    low, high = np.percentile(known_R, PERCENTILES)
    return float(low), float(high)


def image_numbers(ids: Sequence[Any]) -> tuple[np.ndarray, int]:
    """The number of each row's image (N,), and the number of images."""
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(one, len(numbers)) for one in ids]
    return np.array(found, np.int64), len(numbers)
