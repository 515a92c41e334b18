"""The report of `verify`: the stages of each dtype, and the verdict in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pgcli.proof.compare import TensorComparison, TokenComparison
from pgcli.proof.preprocessing import PixelComparison, PromptComparison

#: Shows, while it is entered, what the program is doing.
Waiting = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The stages of one dtype in their order, and each program's time."""

    dtype: str
    vision: TensorComparison
    logits: TensorComparison
    tokens: TokenComparison
    our_seconds: float
    their_seconds: float

    @property
    def first_difference(self) -> str | None:
        """The first stage that differs, or None."""
        stages = (self.vision, self.logits, self.tokens)
        return next((stage.stage for stage in stages if not stage.same), None)


@dataclass(frozen=True, slots=True)
class Proof:
    """All comparisons; `left_out` lists skipped ones with reasons. `levels` is informative.

    `not_followed` are settings of the checkpoint that change transformers' answers only.
    """

    device: str
    transformers: str
    images: int
    rows: int
    prompts: PromptComparison
    levels: PixelComparison | None
    comparisons: tuple[Comparison, ...]
    left_out: tuple[str, ...]
    not_followed: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return self.prompts.same is not False and not any(
            c.first_difference for c in self.comparisons
        )

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.prompts.same is False:
            return f"different: prompt {self.prompts.first!r} has other tokens in transformers"
        differing = [
            f"{c.first_difference} differ in {c.dtype}"
            for c in self.comparisons
            if c.first_difference
        ]
        if differing:
            return f"different: {', '.join(differing)}"
        tokens = sum(c.tokens.agreeing for c in self.comparisons)
        dtypes = " and ".join(c.dtype for c in self.comparisons)
        return (
            f"same: vision features, prefill logits and {tokens} generated tokens are those of "
            f"transformers {self.transformers} in {dtypes}"
        )
