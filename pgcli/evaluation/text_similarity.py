"""Similarity of an answer to a true text: exact match, ANLS and relaxed accuracy."""

from __future__ import annotations

MAX_NORMALIZED_DISTANCE = 0.5  # ANLS is 0 from here on (arXiv 1907.00490, equation 1)
MAX_RELATIVE_ERROR = 0.05  # of a number in ChartQA


def is_exact(answer: str, truth: str) -> float:
    """1 if both are equal, ignoring outer blanks, else 0."""
    return float(answer.strip() == truth.strip())


def anls(answer: str, truth: str) -> float:
    """The normalised Levenshtein similarity, 0 where half of the text or more differs.

    Case and the number of blanks are ignored, as in DocVQA.
    """
    one, other = (" ".join(text.lower().split()) for text in (answer, truth))
    longest = max(len(one), len(other))
    if one == other or not one or not other:
        return float(one == other)
    if abs(len(one) - len(other)) >= MAX_NORMALIZED_DISTANCE * longest:
        return 0.0
    distance = levenshtein(one, other) / longest
    return 1 - distance if distance < MAX_NORMALIZED_DISTANCE else 0.0


def levenshtein(one: str, other: str) -> int:
    """The number of insertions, deletions and substitutions that turn one text into the other.

    Myers' algorithm (1999): a column of the table of distances is held as the bits of two integers,
    which say where the distance grows and where it falls from a row to the next.
    """
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for place, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << place
    every, last, distance = (1 << len(one)) - 1, 1 << (len(one) - 1), len(one)
    grows, falls = every, 0
    for letter in other:
        equal = places.get(letter, 0)
        diagonal = (((equal & grows) + grows) ^ grows) | equal | falls
        grows_right = falls | ~(diagonal | grows) & every
        falls_right = grows & diagonal
        distance += bool(grows_right & last) - bool(falls_right & last)
        grows_right = (grows_right << 1 | 1) & every
        falls_right = falls_right << 1 & every
        grows = falls_right | ~((equal | falls) | grows_right) & every
        falls = grows_right & (equal | falls)
    return distance


def is_relaxed_match(answer: str, truth: str) -> float:
    """1 if both are equal, ignoring case, or are numbers that differ by at most 5 percent, else 0.

    A percentage is a hundredth of its number, and a true 0 is compared as text, as in ChartQA.
    """
    answer, truth = answer.strip(), truth.strip()
    found, true = number(answer), number(truth)
    if found is not None and true:
        return float(abs(found - true) / abs(true) <= MAX_RELATIVE_ERROR)
    return float(answer.lower() == truth.lower())


def number(text: str) -> float | None:
    """The number that a text states, also as a percentage; None if it states none."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
