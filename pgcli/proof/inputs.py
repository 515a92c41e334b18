"""What both programs are given: the same pixels and the same ids, and what both must return.

B rows · C channels · R resolution · P patches · L steps of an answer · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine.sequence import Limits
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.siglip import normalize_pixels
from pgcli.records import DecodedImage

#: Prompts of every task and of different lengths: in one batch, three of four rows have padding.
PROMPTS = (
    "caption en",
    "ocr",
    "detect circle ; square",
    "answer en which shape is in the middle of the picture, and which colour does it have?",
)
MAX_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of a picture and a prompt: pixels as the tower reads them, in float32, and ids."""

    pixels_BCRR: Tensor
    prompts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a program made of the inputs, in float32 on the CPU.

    Tokens end with the stop token where there was one. `steps` has for each row the logits (L, V)
    from which its tokens were chosen; None where they were not kept.
    """

    features_BPD: Tensor
    logits_BV: Tensor
    tokens: tuple[tuple[int, ...], ...]
    steps: tuple[Tensor, ...] | None = None


def make(
    pictures: Sequence[DecodedImage],
    vocabulary: Tokenizer,
    config: PaliGemmaConfig,
    preprocessing: Preprocessing,
) -> Inputs:
    """As many rows as there are prompts or readable pictures, whichever are more, each in turn."""
    rows = range(max(len(pictures), len(PROMPTS)))
    prompts = tuple(PROMPTS[row % len(PROMPTS)] for row in rows)
    squares = [picture.pixels for picture in pictures if picture.pixels is not None]
    return Inputs(
        pixels_BCRR=normalize_pixels(
            torch.from_numpy(np.stack([squares[row % len(squares)] for row in rows])),
            torch.tensor(preprocessing.mean),
            torch.tensor(preprocessing.std),
            torch.float32,
        ),
        prompts=prompts,
        ids=tuple(tuple(vocabulary.encode_prompt(prompt)) for prompt in prompts),
        limits=Limits(
            max_new_tokens=MAX_NEW_TOKENS,
            stop_tokens=frozenset(config.stop_tokens),
            vocabulary=vocabulary.size,
            image_token=config.image_token_id,
        ),
    )
