"""Right or wrong, and by how much: answers and boxes against the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgcli.records import Box


def exact_match(answers: Sequence[str], truths: Sequence[str]) -> float:
    """The share of answers that are the truth to the letter, outer blanks apart."""
    if not truths:
        raise ValueError("no answers to measure")
    pairs = zip(answers, truths, strict=True)
    return sum(answer.strip() == truth.strip() for answer, truth in pairs) / len(truths)


def iou(one: Box, other: Box) -> float:
    """The area two boxes share over the area they cover, 0 to 1; labels are not looked at."""
    shared = overlap(one.xmin, one.xmax, other.xmin, other.xmax) * overlap(
        one.ymin, one.ymax, other.ymin, other.ymax
    )
    covered = area(one) + area(other) - shared
    return shared / covered if covered > 0 else 0.0


def overlap(low: float, high: float, other_low: float, other_high: float) -> float:
    """The length that two stretches of a line share."""
    return max(0.0, min(high, other_high) - max(low, other_low))


def area(box: Box) -> float:
    """The area of a box, in square pixels."""
    return (box.xmax - box.xmin) * (box.ymax - box.ymin)


@dataclass(frozen=True, slots=True)
class Detection:
    """How boxes found compare with the true ones, counted over a whole set of pictures.

    Where nothing was found precision is 1, where nothing was there recall is 1: no claim was
    wrong, and nothing was missed.
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


def detection(
    found: Iterable[Sequence[Box]], truth: Iterable[Sequence[Box]], *, threshold: float = 0.5
) -> Detection:
    """Precision, recall and F1 of the boxes of many pictures, those of one picture per element."""
    right = found_count = true_count = 0
    for claims, facts in zip(found, truth, strict=True):
        right += matches(claims, facts, threshold)
        found_count += len(claims)
        true_count += len(facts)
    return Detection(right, found_count, true_count)


def matches(claims: Sequence[Box], facts: Sequence[Box], threshold: float) -> int:
    """How many claims meet a fact of their label, the surest choosing first, each fact once."""
    free = list(facts)
    for claim in sorted(claims, key=lambda box: -box.score):
        alike = [fact for fact in free if fact.label == claim.label]
        best = max(alike, key=lambda fact: iou(claim, fact), default=None)
        if best is not None and iou(claim, best) >= threshold:
            free.remove(best)
    return len(facts) - len(free)
