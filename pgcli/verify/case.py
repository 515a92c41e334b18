"""The outputs of both programs for a checkpoint, for any kind of model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.images import ImageSpec
from pgcli.records import DecodedImage
from pgcli.verify.preprocessing import PromptComparison

#: Decodes the images to compare with. Raises NoInputError.
ReadImages = Callable[[ImageSpec], list[DecodedImage]]


@dataclass(frozen=True, slots=True)
class Outputs:
    """A program's outputs, in float32 on the CPU: a tensor of each stage, and generated tokens.

    Tokens include the stop token. `steps` has for each row the logits (tokens, vocabulary) of the
    generated tokens, or is None if they were not recorded. `terms` has, for stages that may be
    much smaller than the terms of their sums, the size of these terms and so of their rounding.
    """

    tensors: Mapping[str, Tensor]
    tokens: tuple[tuple[int, ...], ...] = ()
    steps: tuple[Tensor, ...] | None = None
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Both programs on one checkpoint; `program` is the reference with its version.

    `ours` computes pgcli's outputs in a dtype. `load` loads the reference, `expected` computes its
    outputs, and `eager` the same with another attention, or None if there is only one. Exact
    float32 outputs differ by at most `bound`, and `memory` is the need for values of so many bytes.
    `rows` counts images and prompts, None if no text is generated; `image_token` is never part of
    an answer. `texts` compares the tokens of texts. `not_followed` has settings of the checkpoint
    that change only the reference's answers. `float16_problem` says why float16 does not suit the
    model.
    """

    program: str
    images: Sequence[DecodedImage]
    preprocessing: Preprocessing
    parameters: int
    memory: Callable[[int], int]
    ours: Callable[[torch.dtype], Outputs]
    load: Callable[[torch.dtype], Any]
    expected: Callable[[Any], Outputs]
    eager: Callable[[Any], Outputs | None]
    bound: float
    texts: Callable[[], PromptComparison] | None
    rows: int | None = None
    image_token: int = -1
    not_followed: tuple[str, ...] = ()
    float16_problem: str = "only PaliGemma 1 runs in float16"
