"""The interface of a comparison: both programs on one checkpoint, for any kind of model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.images import ImageSpec
from pgcli.model.siglip import normalize_pixels
from pgcli.records import DecodedImage
from pgcli.verify import reference
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


class Case(ABC):
    """Both programs on one checkpoint.

    `parameters` counts the weights. Exact float32 outputs differ by at most `bound`. `rows` counts
    images and prompts, None if no text is generated; `image_token` is never part of an answer.
    `not_followed` has settings of the checkpoint that change only the reference's answers.
    `float16_problem` says why float16 does not suit the model.
    """

    parameters: int
    bound: float
    rows: int | None = None
    image_token: int = -1
    not_followed: tuple[str, ...] = ()
    float16_problem: str = "only PaliGemma 1 runs in float16"

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        preprocessing: Preprocessing,
        resolution: int,
        read_images: ReadImages,
    ):
        reference.import_transformers()
        self.folder, self.device, self.preprocessing = folder, device, preprocessing
        self.program = f"transformers {version('transformers')}"
        self.images = read_images(preprocessing.image_spec(resolution))

    def pixels(self, rows: int) -> Tensor:
        """The normalized images (B, C, R, R) in float32, repeated up to this many rows."""
        pixels = [image.pixels for image in self.images if image.pixels is not None]
        mean, std = torch.tensor(self.preprocessing.mean), torch.tensor(self.preprocessing.std)
        stacked = torch.from_numpy(np.stack([pixels[row % len(pixels)] for row in range(rows)]))
        return normalize_pixels(stacked, mean, std, torch.float32)

    @abstractmethod
    def needed_memory(self, itemsize: int) -> int:
        """The bytes that either program needs, for values of so many bytes."""

    @abstractmethod
    def ours(self, dtype: torch.dtype) -> Outputs:
        """pgcli's outputs in this dtype."""

    @abstractmethod
    def load(self, dtype: torch.dtype) -> Any:
        """The reference in this dtype."""

    @abstractmethod
    def expected(self, model: Any) -> Outputs:
        """The reference's outputs."""

    @abstractmethod
    def eager(self, model: Any) -> Outputs | None:
        """The reference's outputs with another attention; None if there is only one."""

    @abstractmethod
    def compare_texts(self) -> PromptComparison | None:
        """Whether both programs make the same tokens of texts; None without a text tower."""
