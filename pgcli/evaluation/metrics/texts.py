"""Metrics that compare an answer with each true one: equality, relaxed accuracy and ANLS."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric

MAX_RELATIVE_ERROR = 0.05
MIN_SIMILARITY = 0.5  # lower ones count as 0; DocVQA's evaluator keeps 0.5 itself


def measure_exact(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer equals a true one, ignoring surrounding whitespace."""
    return [mean("exact", [row.best(is_exact) for row in rows])]


def measure_relaxed(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer equals a true one, or is a number close to it (ChartQA)."""
    return [mean("relaxed", [row.best(is_relaxed_match) for row in rows])]


def measure_anls(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The average normalised Levenshtein similarity, as DocVQA's evaluator computes it."""
    return [mean("anls", [row.best(anls) for row in rows])]


EXACT = Metric("answers", measure_exact)
RELAXED = Metric("answers", measure_relaxed)
ANLS = Metric("answers", measure_anls)


def is_exact(answer: str, truth: str) -> float:
    """1 if both texts are equal, ignoring surrounding whitespace, else 0."""
    return float(answer.strip() == truth.strip())


def is_relaxed_match(answer: str, truth: str) -> float:
    """1 if both texts are equal, ignoring case, or are numbers within 5 percent, else 0.

    As in ChartQA, a percentage is a hundredth of its number, and a true 0 is compared as text.
    """
    answer, truth = answer.strip(), truth.strip()
    value, target = stated_number(answer), stated_number(truth)
    if value is not None and target:
        return float(abs(value - target) / abs(target) <= MAX_RELATIVE_ERROR)
    return float(answer.lower() == truth.lower())


def stated_number(text: str) -> float | None:
    """The number or percentage in a text; None for any other text."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def anls(answer: str, truth: str) -> float:
    """1 minus the edit distance divided by the length of the longer text; 0 below 0.5.

    Case and repeated whitespace are ignored, except in the length of the longer text.
    """
    longest = max(len(answer.upper()), len(truth.upper()))
    if not longest:
        return 1.0
    plain = [" ".join(text.strip().lower().split()) for text in (answer, truth)]
    similarity = 1 - levenshtein(*plain) / longest
    return similarity if similarity >= MIN_SIMILARITY else 0.0


def levenshtein(first: str, second: str) -> int:
    """The number of insertions, deletions and substitutions that turn one text into the other.

    Myers' algorithm (1999): the bits of two integers say where the distance grows and where it
    falls from each row of the table's column to the next.
    """
    if not first:
        return len(second)
    bits: dict[str, int] = {}
    for index, letter in enumerate(first):
        bits[letter] = bits.get(letter, 0) | 1 << index
    every, last, distance = (1 << len(first)) - 1, 1 << (len(first) - 1), len(first)
    grows, falls = every, 0
    for letter in second:
        equal = bits.get(letter, 0)
        diagonal = (((equal & grows) + grows) ^ grows) | equal | falls
        grows_right = falls | ~(diagonal | grows) & every
        falls_right = grows & diagonal
        distance += bool(grows_right & last) - bool(falls_right & last)
        grows_right = (grows_right << 1 | 1) & every
        falls_right = falls_right << 1 & every
        grows = falls_right | ~((equal | falls) | grows_right) & every
        falls = grows_right & (equal | falls)
    return distance
