"""What comes before the model: prompts as ids, and pictures as levels of 255, in both programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine.tokenizer import Tokenizer
from pgcli.images import ImageLimits, load_image
from pgcli.proof import theirs
from pgcli.records import DecodedImage


@dataclass(frozen=True, slots=True)
class Prompts:
    """Whether prompts become the same ids; `same` is None where transformers has no tokenizer."""

    same: bool | None
    first: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Levels:
    """How far the processors' pictures lie apart, in levels of 255."""

    largest: float
    mean: float


def prompts(folder: Path, vocabulary: Tokenizer, texts: Sequence[str]) -> Prompts:
    """Compare the ids of each prompt; `first` is the first that differs."""
    try:
        other = theirs.prompt_ids(folder, tuple(texts))
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        # whatever its loader stumbles over, a tokenizer that it cannot read proves nothing
        return Prompts(None, reason=next(iter(str(error).splitlines()), type(error).__name__))
    for text, ids in zip(texts, other, strict=True):
        if vocabulary.encode_prompt(text) != ids:
            return Prompts(same=False, first=text)
    return Prompts(same=True)


def levels(
    folder: Path, pictures: Sequence[DecodedImage], preprocessing: Preprocessing
) -> Levels | None:
    """Compare the squares made of the same upright pictures; None where it has no processor."""
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    apart = []
    for picture in pictures:
        item = picture.item
        image = load_image(item.data if item.path is None else item.path, ImageLimits())
        try:
            pixels_CRR = theirs.levels(folder, image)[0].float()
        except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError):
            return None
        other = (pixels_CRR.permute(1, 2, 0) * std + mean) * 255
        assert picture.pixels is not None
        mine = torch.from_numpy(picture.pixels).float()
        if mine.shape != other.shape:
            return None
        apart.append((mine - other).abs())
    together = torch.stack(apart)
    return Levels(together.max().item(), together.mean().item())
