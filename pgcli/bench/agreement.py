"""Compares the tokens of two programs, since only equal answers make speeds comparable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Equal rows, and tokens before the first difference of their row, of all rows and tokens."""

    against: str
    rows: int
    same_rows: int
    tokens: int
    same_tokens: int
    share: float


def agreement(against: str, ours: Tokens, theirs: Tokens) -> Agreement:
    """Compare every row up to its first different token; later tokens have different prefixes."""
    pairs = list(zip(ours, theirs, strict=True))
    rows = sum(tuple(mine) == tuple(other) for mine, other in pairs)
    tokens = sum(max(len(mine), len(other)) for mine, other in pairs)
    same = sum(_shared(mine, other) for mine, other in pairs)
    return Agreement(against, len(pairs), rows, tokens, same, same / tokens)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of two rows' common prefix."""
    shortest = min(len(first), len(second))
    return next((n for n in range(shortest) if first[n] != second[n]), shortest)


def histogram(tokens: Tokens) -> dict[int, int]:
    """The number of rows of each length, from the shortest to the longest."""
    return dict(sorted(Counter(map(len, tokens)).items()))
