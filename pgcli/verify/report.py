"""The report of `verify`: each dtype's stages, and the verdict in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.verify.compare import TensorComparison, TokenComparison
from pgcli.verify.preprocessing import PixelComparison, PromptComparison

ComparedStages = tuple[TensorComparison | TokenComparison, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The stages of one dtype in their order, and each program's time."""

    dtype: str
    stages: ComparedStages
    our_seconds: float
    their_seconds: float

    @property
    def first_difference(self) -> str | None:
        """The first stage that differs, or None."""
        return next((stage.stage for stage in self.stages if not stage.same), None)


@dataclass(frozen=True, slots=True)
class Proof:
    """All comparisons with the `program`, named with its version; `skipped` has reasons.

    `rows` counts images and prompts, None if no text is generated. `texts` compares the tokens of
    prompts or texts, None without a text tower; `levels` compares the pixels, for information.
    `not_followed` has settings of the checkpoint that change only transformers' answers.
    """

    device: str
    program: str
    images: int
    rows: int | None
    texts: PromptComparison | None
    levels: PixelComparison | None
    comparisons: tuple[Comparison, ...]
    skipped: tuple[str, ...]
    not_followed: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        has_same_tokens = self.texts is None or self.texts.same is not False
        return has_same_tokens and not any(c.first_difference for c in self.comparisons)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.texts is not None and self.texts.same is False:
            return f"different: {self.texts.first!r} has different tokens in {self.program}"
        differing = [
            f"{c.first_difference} differ in {c.dtype}"
            for c in self.comparisons
            if c.first_difference
        ]
        if differing:
            return f"different: {', '.join(differing)}"
        stages = [stage for comparison in self.comparisons for stage in comparison.stages]
        tokens = sum(stage.agreeing for stage in stages if isinstance(stage, TokenComparison))
        *names, last = [stage.stage for stage in self.comparisons[0].stages]
        last = f"{tokens} {last}" if tokens else last
        names_text = f"{', '.join(names)} and {last}" if names else last
        # float16 is compared with the reference in float32
        dtypes = " and ".join(
            "float32 (pgcli in float16)" if c.dtype == "float16" else c.dtype
            for c in self.comparisons
        )
        return f"same: {names_text} match {self.program} in {dtypes}"
