"""What is to be measured: batch sizes, scopes, lengths, rounds and time; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

Scope = Literal["device", "arrays", "files"]
SCOPES: tuple[Scope, ...] = ("device", "arrays", "files")
SEED = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long answers are: `least` to `most` tokens drawn evenly, or, natural, up to `most`."""

    least: int
    most: int
    natural: bool = False

    def __str__(self) -> str:
        if self.natural:
            return f"natural, up to {self.most}"
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"

    def of(self, rows: int) -> tuple[int, ...]:
        """Each row's own, always the same; none where answers end by themselves."""
        draws = Random(SEED)
        return (
            () if self.natural else tuple(draws.randint(self.least, self.most) for _ in range(rows))
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: no batch sizes stand for 1, 8 and what `auto` takes.

    Each program runs `rounds` times at each setting. `seconds` are for all of it, warm-ups and the
    machine's own rates apart, and decide how many pictures a run has unless `pictures` does. What
    is quantized is also measured as it was.
    """

    batch_sizes: tuple[int, ...] = ()
    scopes: tuple[Scope, ...] = SCOPES
    lengths: tuple[Lengths, ...] = (Lengths(16, 16),)
    prompts: tuple[str, ...] = ("caption en",)
    rounds: int = 5
    seconds: float = 60.0
    pictures: int | None = None
    quantize: str = "none"
