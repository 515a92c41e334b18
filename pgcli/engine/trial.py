"""What a measurement asks of a run: answers of exact lengths, and every row's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Trial:
    """Exact numbers of tokens, a row's by its place; with none, answers end by themselves.

    `tokens` is filled with what was generated, the stop token included, by the rows' places.
    """

    lengths: Sequence[int] = ()
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def lengths_at(self, places: Sequence[int]) -> list[int] | None:
        """How many tokens each of these rows is to have; None where that is left to the model."""
        return [self.lengths[place] for place in places] if self.lengths else None
