"""Calibration of the confidence of boxes: the share of right ones in bins of confidence.

Letters of shapes: N rows, U images, R resamples, D boxes, K bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from pgcli.evaluation.measures import RESAMPLES
from pgcli.records import Box

BINS = 10


class Bin(NamedTuple):
    """The boxes with a confidence between `low` and `high`: its mean, the share of right ones, and
    their number.
    """

    low: float
    high: float
    confidence: float
    right: float
    boxes: int


@dataclass(frozen=True)
class CalibrationError:
    """The expected calibration error: the mean over boxes of how far the share of right boxes in
    their bin is from the mean confidence there; NaN without boxes that have a confidence.
    """

    confidence_NK: np.ndarray
    right_NK: np.ndarray
    count_NK: np.ndarray
    name: str = "calibration"
    max_resamples: int = RESAMPLES

    @classmethod
    def of(cls, boxes: Sequence[Sequence[Box]], right: Sequence[Sequence[bool]]) -> Self:
        """The calibration of the boxes of each row, and whether they are right."""
        sums_3NK = np.zeros((3, len(boxes), BINS))
        for number, (found, are_right) in enumerate(zip(boxes, right, strict=True)):
            for box, is_right in zip(found, are_right, strict=True):
                if box.confidence is not None:
                    place = min(int(box.confidence * BINS), BINS - 1)
                    sums_3NK[:, number, place] += box.confidence, is_right, 1
        return cls(*sums_3NK)

    @property
    def rows(self) -> int:
        return len(self.count_NK)

    def row_scores(self) -> np.ndarray:
        return np.full(self.rows, np.nan)

    def select(self, is_chosen_N: np.ndarray) -> Self:
        return replace(
            self,
            confidence_NK=self.confidence_NK[is_chosen_N],
            right_NK=self.right_NK[is_chosen_N],
            count_NK=self.count_NK[is_chosen_N],
        )

    def values(self, weights_RU: np.ndarray, image_N: np.ndarray) -> np.ndarray:
        gap_UK = np.zeros((weights_RU.shape[1], BINS))
        np.add.at(gap_UK, image_N, self.confidence_NK - self.right_NK)
        count_U = np.bincount(image_N, self.count_NK.sum(axis=1), weights_RU.shape[1])
        with np.errstate(invalid="ignore", divide="ignore"):
            errors: np.ndarray = np.abs(weights_RU @ gap_UK).sum(axis=1) / (weights_RU @ count_U)
        return errors

    def bins(self) -> list[Bin]:
        """The bins that have boxes."""
        sums = (one.sum(axis=0) for one in (self.confidence_NK, self.right_NK, self.count_NK))
        return [
            Bin(place / BINS, (place + 1) / BINS, confidence / count, right / count, int(count))
            for place, (confidence, right, count) in enumerate(
                zip(*(one.tolist() for one in sums), strict=True)
            )
            if count
        ]
