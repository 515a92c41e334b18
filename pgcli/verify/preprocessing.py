"""Compares the preprocessing of both programs: prompt ids and pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.images import ImageLimits, load_image
from pgcli.records import DecodedImage
from pgcli.text import first_line
from pgcli.verify import reference


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Whether prompts have equal ids; `same` is None if transformers cannot read the tokenizer."""

    same: bool | None
    first: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PixelComparison:
    """The difference of the preprocessed images, in levels of 255."""

    largest: float
    mean: float


def compare_prompts(
    texts: Sequence[str],
    ours: Sequence[Sequence[int]],
    read_expected: Callable[[], Sequence[Sequence[int]]],
) -> PromptComparison:
    """Compare the ids of each text; `first` is the first that differs."""
    try:
        expected = read_expected()
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        # a tokenizer that transformers cannot read proves nothing
        return PromptComparison(None, reason=first_line(error))
    for text, ids, expected_ids in zip(texts, ours, expected, strict=True):
        if ids != expected_ids:
            return PromptComparison(same=False, first=text)
    return PromptComparison(same=True)


def compare_pixels(
    folder: Path, images: Sequence[DecodedImage], preprocessing: Preprocessing
) -> PixelComparison | None:
    """Compare the preprocessed pixels of the same upright images; None without a processor."""
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    differences = []
    for decoded in images:
        item = decoded.item
        image = load_image(item.data if item.path is None else item.path, ImageLimits())
        try:
            pixels_CRR = reference.processed_pixels(folder, image)[0].float()
        except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError):
            return None
        expected = (pixels_CRR.permute(1, 2, 0) * std + mean) * 255
        assert decoded.pixels is not None
        pixels = torch.from_numpy(decoded.pixels).float()
        if pixels.shape != expected.shape:
            return None
        differences.append((pixels - expected).abs())
    stacked = torch.stack(differences)
    return PixelComparison(stacked.max().item(), stacked.mean().item())
