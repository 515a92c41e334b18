"""The inputs that both programs get, and the outputs that are compared.

B rows · C channels · R resolution · P patches · L tokens of an answer · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine.sampler import OutputVocabulary
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.siglip import normalize_pixels
from pgcli.records import DecodedImage

#: Prompts of every task and of different lengths: in one batch, three of four rows have padding.
PROMPTS = (
    "caption en",
    "ocr",
    "detect circle ; square",
    "answer en which shape is in the middle of the image, and which colour does it have?",
)
MAX_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of an image and a prompt: normalized pixels in float32, and prompt ids."""

    pixels_BCRR: Tensor
    prompts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    vocabulary: OutputVocabulary


@dataclass(frozen=True, slots=True)
class StageOutputs:
    """A program's outputs at each stage, in float32 on the CPU.

    Tokens include the stop token. `steps` has for each row the logits (L, V) from which its tokens
    were selected, or is None if they were not recorded.
    """

    features_BPD: Tensor
    logits_BV: Tensor
    tokens: tuple[tuple[int, ...], ...]
    steps: tuple[Tensor, ...] | None = None


def make_inputs(
    images: Sequence[DecodedImage],
    tokenizer: Tokenizer,
    config: PaliGemmaConfig,
    preprocessing: Preprocessing,
) -> Inputs:
    """A row for each prompt or readable image, whichever are more; the others are repeated."""
    rows = range(max(len(images), len(PROMPTS)))
    prompts = tuple(PROMPTS[row % len(PROMPTS)] for row in rows)
    pixels = [image.pixels for image in images if image.pixels is not None]
    return Inputs(
        pixels_BCRR=normalize_pixels(
            torch.from_numpy(np.stack([pixels[row % len(pixels)] for row in rows])),
            torch.tensor(preprocessing.mean),
            torch.tensor(preprocessing.std),
            torch.float32,
        ),
        prompts=prompts,
        ids=tuple(tuple(tokenizer.encode_prompt(prompt)) for prompt in prompts),
        vocabulary=OutputVocabulary(tokenizer.size, config.image_token_id, config.stop_tokens),
    )
