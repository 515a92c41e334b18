"""What a proof comes to: the stages of each dtype, and the verdict in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.proof.compare import Numbers, Tokens
from pgcli.proof.preparation import Levels, Prompts


@dataclass(frozen=True, slots=True)
class Comparison:
    """One dtype: the stages in the order in which a picture meets them, and each side's time."""

    dtype: str
    vision: Numbers
    logits: Numbers
    tokens: Tokens
    our_seconds: float
    their_seconds: float

    @property
    def parted(self) -> str | None:
        """The first stage that differs, if any does."""
        stages = (self.vision, self.logits, self.tokens)
        return next((stage.stage for stage in stages if not stage.same), None)


@dataclass(frozen=True, slots=True)
class Proof:
    """All that was compared; `left_out` says what was not, and why. `levels` is for information."""

    device: str
    transformers: str
    pictures: int
    rows: int
    prompts: Prompts
    levels: Levels | None
    comparisons: tuple[Comparison, ...]
    left_out: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.prompts.same is not False and not any(c.parted for c in self.comparisons)

    @property
    def verdict(self) -> str:
        """What it comes to, in a sentence."""
        if self.prompts.same is False:
            return f"different: prompt {self.prompts.first!r} becomes other tokens in transformers"
        parted = [f"{c.parted} part in {c.dtype}" for c in self.comparisons if c.parted]
        if parted:
            return f"different: {', '.join(parted)}"
        tokens = sum(c.tokens.agreeing for c in self.comparisons)
        dtypes = " and ".join(c.dtype for c in self.comparisons)
        return (
            f"same: vision features, prefill logits and {tokens} generated tokens are those of "
            f"transformers {self.transformers} in {dtypes}"
        )
