"""How far two programs' tokens agree: what a speed is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Rows alike to their end, and tokens before any parting, of all rows and tokens there are."""

    against: str
    rows: int
    same_rows: int
    tokens: int
    same_tokens: int
    share: float


def agreement(against: str, ours: Tokens, theirs: Tokens) -> Agreement:
    """Compare every row; beyond the token at which two part they answer different questions."""
    pairs = list(zip(ours, theirs, strict=True))
    rows = sum(tuple(mine) == tuple(other) for mine, other in pairs)
    tokens = sum(max(len(mine), len(other)) for mine, other in pairs)
    same = sum(_shared(mine, other) for mine, other in pairs)
    return Agreement(against, len(pairs), rows, tokens, same, same / tokens)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two rows have in common before they part."""
    shortest = min(len(first), len(second))
    return next((n for n in range(shortest) if first[n] != second[n]), shortest)


def histogram(tokens: Tokens) -> dict[int, int]:
    """How many rows have so many tokens, from the shortest to the longest."""
    return dict(sorted(Counter(map(len, tokens)).items()))
