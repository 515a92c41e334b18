"""The average normalised Levenshtein similarity (ANLS), as the evaluator of DocVQA computes it."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric

MIN_SIMILARITY = 0.5  # below which it counts as 0: the evaluator keeps 0.5 itself


def measure_anls(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean over rows of the highest similarity with a true answer."""
    return [mean("anls", [row.best(anls) for row in rows])]


ANLS = Metric("answers", measure_anls)


def anls(answer: str, truth: str) -> float:
    """1 - the share of the longer text by which both differ; 0 below a half.

    Case and the number of blanks are ignored, except in the length of the longer text.
    """
    longest = max(len(answer.upper()), len(truth.upper()))
    if not longest:
        return 1.0
    plain = [" ".join(text.strip().lower().split()) for text in (answer, truth)]
    similarity = 1 - levenshtein(*plain) / longest
    return similarity if similarity >= MIN_SIMILARITY else 0.0


def levenshtein(first: str, second: str) -> int:
    """The number of insertions, deletions and substitutions that turn one text into the other.

    Myers' algorithm (1999): a column of the table of distances is held as the bits of two integers,
    which say where the distance grows and where it falls from a row to the next.
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
