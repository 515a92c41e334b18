"""The settings of a benchmark: batch sizes, scopes, lengths, rounds and time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

Scope = Literal["device", "arrays", "files"]
SCOPES: tuple[Scope, ...] = ("device", "arrays", "files")
SEED = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Answer lengths: uniform between `least` and `most` tokens, or natural, up to `most`."""

    least: int
    most: int
    natural: bool = False

    def __str__(self) -> str:
        if self.natural:
            return f"natural, up to {self.most}"
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"

    def of(self, rows: int) -> tuple[int, ...]:
        """Each row's length, always the same; empty if answers end with their stop token."""
        rng = Random(SEED)
        return (
            () if self.natural else tuple(rng.randint(self.least, self.most) for _ in range(rows))
        )


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is measured; without batch sizes, 1, 8 and that of `--batch-size auto`.

    Each program runs `rounds` times at each setting. `seconds` is the time for all runs except
    warm-up, from which the number of images follows unless `images` is given. A quantized model is
    also measured unquantized.
    """

    batch_sizes: tuple[int, ...] = ()
    scopes: tuple[Scope, ...] = SCOPES
    lengths: tuple[Lengths, ...] = (Lengths(16, 16),)
    prompts: tuple[str, ...] = ("caption en",)
    rounds: int = 5
    seconds: float = 60.0
    images: int | None = None
    quantize: str = "none"
