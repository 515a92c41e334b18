"""Drawings as the built-in model's decoder reads them."""

from __future__ import annotations

import numpy
import torch
from PIL import Image
from torch import Tensor

from examples.demo_model.scenes import Scene, render
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels


def seen(demo: PaliGemma, scene: Scene) -> Tensor:
    """One drawing's patches (1, P, D)."""
    side = demo.config.vision.resolution
    preprocessing = read_preprocessing(BUILTIN, side)
    square = render(scene).resize((side, side), Image.Resampling(preprocessing.resample))
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    pixels_BRRC = torch.from_numpy(numpy.array(square))[None]
    return demo.encode(normalize_pixels(pixels_BRRC, mean, std, torch.float32))
