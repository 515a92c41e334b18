"""What both programs compute of a checkpoint, whatever kind of model it has."""

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

    Tokens include the stop token. `steps` has for each row the logits (tokens, vocabulary) from
    which its tokens were selected, or is None if they were not recorded. `terms` has the size of
    the terms of stages whose values may be much smaller than these, and their rounding.
    """

    tensors: Mapping[str, Tensor]
    tokens: tuple[tuple[int, ...], ...] = ()
    steps: tuple[Tensor, ...] | None = None
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Both programs on one checkpoint; the reference is a `program` with its version.

    `ours` are the outputs of this code in a dtype. `load` loads the reference, of which `expected`
    are the outputs, and `eager` those with another attention, None if there is only one. Numbers
    that are exact in float32 differ by at most `bound`, and `memory` is what values of so many
    bytes need. `rows` are those of images and prompts, None where no text is generated; then
    `image_token` is never one of the answers. `texts` compares the tokens of texts. `not_followed`
    are settings of the checkpoint that change the answers of the reference only. `float16_problem`
    says why float16 is not for the model.
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
    float16_problem: str = "float16 is only for answers of PaliGemma 1"
