"""Metrics of answers and boxes: exact match, IoU, precision, recall and F1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgcli.records import Box


def exact_match(answers: Sequence[str], truths: Sequence[str]) -> float:
    """The share of answers that equal the truth, ignoring outer blanks."""
    if not truths:
        raise ValueError("no answers to measure")
    pairs = zip(answers, truths, strict=True)
    return sum(answer.strip() == truth.strip() for answer, truth in pairs) / len(truths)


def iou(one: Box, other: Box) -> float:
    """The intersection over union of two boxes, 0 to 1; labels are ignored."""
    intersection = overlap(one.xmin, one.xmax, other.xmin, other.xmax) * overlap(
        one.ymin, one.ymax, other.ymin, other.ymax
    )
    union = area(one) + area(other) - intersection
    return intersection / union if union > 0 else 0.0


def overlap(low: float, high: float, other_low: float, other_high: float) -> float:
    """The length of the intersection of two intervals."""
    return max(0.0, min(high, other_high) - max(low, other_low))


def area(box: Box) -> float:
    """The area of a box, in square pixels."""
    return (box.xmax - box.xmin) * (box.ymax - box.ymin)


@dataclass(frozen=True, slots=True)
class DetectionCounts:
    """The numbers of matched, predicted and true boxes over a set of images.

    Precision is 1 without predictions, and recall is 1 without true boxes.
    """

    right: int
    found: int
    true: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 1.0

    @property
    def f1(self) -> float:
        both = self.found + self.true
        return 2 * self.right / both if both else 1.0


def count_detections(
    found: Iterable[Sequence[Box]], truth: Iterable[Sequence[Box]], *, threshold: float = 0.5
) -> DetectionCounts:
    """Precision, recall and F1 of the boxes of many images, a sequence of boxes per image."""
    right = found_count = true_count = 0
    for predictions, truths in zip(found, truth, strict=True):
        right += sum(is_right(predictions, truths, threshold))
        found_count += len(predictions)
        true_count += len(truths)
    return DetectionCounts(right, found_count, true_count)


def confidence_of(box: Box) -> float:
    """The confidence of a box, or its score where it has none."""
    return box.score if box.confidence is None else box.confidence


def is_right(found: Sequence[Box], true: Sequence[Box], threshold: float = 0.5) -> list[bool]:
    """Whether each box found is a true one of its label, each at most once.

    Boxes are matched in descending order of confidence, each to the free one with the highest IoU.
    """
    free, right = list(true), [False] * len(found)
    for number in sorted(range(len(found)), key=lambda number: -confidence_of(found[number])):
        box = found[number]
        same = [other for other in free if other.label == box.label]
        best = max(same, key=lambda other: iou(box, other), default=None)
        if best is not None and iou(box, best) >= threshold:
            free.remove(best)
            right[number] = True
    return right
