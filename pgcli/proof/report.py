"""The report of `verify`: the stages of each dtype, and the verdict in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import torch

from pgcli.proof import reference
from pgcli.proof.compare import TensorComparison, TokenComparison
from pgcli.proof.preprocessing import PixelComparison, PromptComparison

Outputs = TypeVar("Outputs")
Stages = tuple[TensorComparison | TokenComparison, ...]
#: Shows, while it is entered, what the program is doing.
Waiting = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The stages of one dtype in their order, and each program's time."""

    dtype: str
    stages: Stages
    our_seconds: float
    their_seconds: float

    @property
    def first_difference(self) -> str | None:
        """The first stage that differs, or None."""
        return next((stage.stage for stage in self.stages if not stage.same), None)


@dataclass(frozen=True, slots=True)
class Proof:
    """All comparisons with the `program`, named with its version; `left_out` has reasons.

    `rows` are those of images and prompts, None where no text is generated. `texts` are the tokens
    of prompts or texts, None without a text tower; `levels`, which is informative, the pixels.
    `not_followed` are settings of the checkpoint that change transformers' answers only.
    """

    device: str
    program: str
    images: int
    rows: int | None
    texts: PromptComparison | None
    levels: PixelComparison | None
    comparisons: tuple[Comparison, ...]
    left_out: tuple[str, ...]
    not_followed: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        has_same_tokens = self.texts is None or self.texts.same is not False
        return has_same_tokens and not any(c.first_difference for c in self.comparisons)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.texts is not None and self.texts.same is False:
            return f"different: {self.texts.first!r} has other tokens in {self.program}"
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
        dtypes = " and ".join(c.dtype for c in self.comparisons)
        return f"same: {names_text} are those of {self.program} in {dtypes}"


def compare_programs(
    dtype: torch.dtype,
    waiting: Waiting,
    *,
    ours: Callable[[], Outputs],
    load: Callable[[], Any],
    theirs: Callable[[Any], Outputs],
    eager: Callable[[Any], Outputs | None],
    stages: Callable[[Outputs, Outputs, Outputs | None], Stages],
) -> Comparison:
    """Both programs in one dtype. The first model is freed before the second is loaded.

    The outputs of `eager` attention, whose differences are rounding noise, are compared too in
    bfloat16, and where float32 differs.
    """
    name = str(dtype).removeprefix("torch.")
    start = perf_counter()
    with waiting(f"{name}: running this code"):
        mine = ours()
    reference.free_memory()
    middle = perf_counter()
    # cuDNN would compute the reference's patch convolution in tf32
    with waiting(f"{name}: running the reference"), torch.backends.cudnn.flags(allow_tf32=False):
        model = load()
        other = theirs(model)
        compared = stages(mine, other, None)
        is_exact = dtype == torch.float32 and all(stage.same for stage in compared)
        if not is_exact and (noisy := eager(model)) is not None:
            compared = stages(mine, other, noisy)
        del model
    reference.free_memory()
    return Comparison(name, compared, middle - start, perf_counter() - middle)
