"""The report of `verify` on two towers and classifiers, and the verdict in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.proof.compare import TensorComparison
from pgcli.proof.preprocessing import PixelComparison, PromptComparison


@dataclass(frozen=True, slots=True)
class TowerComparison:
    """The outputs compared in one dtype, and each program's time."""

    dtype: str
    stages: tuple[TensorComparison, ...]
    our_seconds: float
    their_seconds: float

    @property
    def first_difference(self) -> str | None:
        """The first stage that differs, or None."""
        return next((stage.stage for stage in self.stages if not stage.same), None)


@dataclass(frozen=True, slots=True)
class TowerProof:
    """All comparisons of two towers or a classifier with the `program`, named with its version.

    `texts` are the tokens, None without a text tower; `levels`, which is informative, the pixels.
    """

    device: str
    program: str
    images: int
    texts: PromptComparison | None
    levels: PixelComparison | None
    comparisons: tuple[TowerComparison, ...]
    left_out: tuple[str, ...]

    @property
    def same(self) -> bool:
        has_same_tokens = self.texts is None or self.texts.same is not False
        return has_same_tokens and not any(one.first_difference for one in self.comparisons)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.texts is not None and self.texts.same is False:
            return f"different: the text {self.texts.first!r} has other tokens in {self.program}"
        differing = [
            f"{one.first_difference} differ in {one.dtype}"
            for one in self.comparisons
            if one.first_difference
        ]
        if differing:
            return f"different: {', '.join(differing)}"
        names = " and ".join(stage.stage for stage in self.comparisons[0].stages)
        dtypes = " and ".join(one.dtype for one in self.comparisons)
        return f"same: {names} are those of {self.program} in {dtypes}"
