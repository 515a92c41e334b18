"""Models to train: from a checkpoint, or new ones of three sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from pgcli.checkpoints.model_description import ModelDescription
from pgcli.model.config import ClassifierConfig, TextConfig, TwoTowersConfig, VisionConfig
from pgcli.model.siglip import ImageClassifier
from pgcli.model.two_towers import TwoTowers
from pgcli.towers.loader import encoder_config, read_model
from pgcli.training.contrastive import SIGLIP_BIAS, SIGLIP_SCALE

ModelSize = Literal["tiny", "small", "base"]

#: Of the vision tower; small and base are ViT-S/16 and ViT-B/16, tiny trains on a CPU.
VISION: Mapping[ModelSize, VisionConfig] = MappingProxyType(
    {
        "tiny": VisionConfig(
            width=128, depth=4, mlp_dim=512, num_heads=4, patch_size=8, resolution=64
        ),
        "small": VisionConfig(
            width=384, depth=12, mlp_dim=1536, num_heads=6, patch_size=16, resolution=224
        ),
        "base": VisionConfig(
            width=768, depth=12, mlp_dim=3072, num_heads=12, patch_size=16, resolution=224
        ),
    }
)
#: Of the text tower: its depth, the length of texts, and the most tokens of its tokenizer.
TEXT_SIZES: Mapping[ModelSize, tuple[int, int, int]] = MappingProxyType(
    {"tiny": (2, 32, 4_000), "small": (12, 64, 16_000), "base": (12, 64, 32_000)}
)
CLIP_SCALE = 1 / 0.07  # the initial scale of CLIP's training
RESIDUAL = ("out_proj", "fc2")  # the last layers of a residual branch
POSITION_STD = 0.02


def new_two_towers(size: ModelSize, *, tokens: int, loss: str, seed: int) -> TwoTowers:
    """SigLIP's architecture with random weights, and the loss's initial scale and bias."""
    vision = VISION[size]
    depth, length, _ = TEXT_SIZES[size]
    text = TextConfig(
        width=vision.width,
        depth=depth,
        mlp_dim=vision.mlp_dim,
        num_heads=vision.num_heads,
        vocab_size=tokens,
        max_positions=length,
    )
    model = TwoTowers(TwoTowersConfig("siglip", vision, text, embedding_dim=vision.width))
    is_sigmoid = loss == "sigmoid"
    scale, bias = (SIGLIP_SCALE, SIGLIP_BIAS) if is_sigmoid else (CLIP_SCALE, 0.0)
    init_towers(model, seed=seed, scale=math.log(scale), bias=bias)
    return model


def new_classifier(size: ModelSize, labels: Sequence[str], *, seed: int) -> ImageClassifier:
    """ViT with random weights; the linear layer begins at zero."""
    vision = replace(VISION[size], class_token=True, activation="gelu", norm_eps=1e-12)
    model = ImageClassifier(ClassifierConfig("vit", vision, labels=tuple(labels)))
    init_towers(model, seed=seed)
    return _with_zero_head(model)


def two_towers_of(folder: Path, description: ModelDescription, device: torch.device) -> TwoTowers:
    """The two towers of a checkpoint in float32."""
    model = read_model(folder, description, dtype=torch.float32, device=device)
    assert isinstance(model, TwoTowers)
    return model.requires_grad_(requires_grad=True)


def classifier_of(
    folder: Path, description: ModelDescription, labels: Sequence[str], device: torch.device
) -> ImageClassifier:
    """A classifier with the vision tower of a checkpoint, in float32.

    Keeps the linear layer of a classifier with the same labels, in its order; else the layer is new
    and starts at zero.
    """
    config = encoder_config(description)
    loaded = read_model(folder, description, dtype=torch.float32, device=device)
    if isinstance(loaded, ImageClassifier) and set(loaded.config.labels) == set(labels):
        return loaded.requires_grad_(requires_grad=True)
    if isinstance(config, ClassifierConfig):
        family = config.family
    else:
        family = "clip" if config.family == "clip" else "siglip"
    model = ImageClassifier(ClassifierConfig(family, config.vision, tuple(labels)))
    model.vision = loaded.vision
    return _with_zero_head(model.to(device)).requires_grad_(requires_grad=True)


def _with_zero_head(model: ImageClassifier) -> ImageClassifier:
    """The model with a linear layer of zeros, as big_vision starts fine-tuning."""
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    return model


def init_towers(model: nn.Module, *, seed: int, scale: float = 0.0, bias: float = 0.0) -> None:
    """Fill the parameters with random numbers that keep the variance of activations.

    Kernels have the standard deviation 1 / sqrt(inputs) (LeCun), divided at the end of residual
    branches by the square root of the branch count (GPT-2). `scale`, a logarithm, and `bias` are
    for the logits of two towers.
    """
    generator = torch.Generator().manual_seed(seed)

    def fill(parameter: Tensor, std: float) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    with torch.no_grad():
        for name, module in model.named_modules():
            branches = 2 * _depth(model, name) if name.endswith(RESIDUAL) else 1
            if isinstance(module, nn.Linear | nn.Conv2d):
                fill(module.weight, (module.weight[0].numel() * branches) ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                fill(module.weight, POSITION_STD)
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
                module.bias.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith(("probe", "class_embedding")):
                fill(parameter, POSITION_STD)
            elif name.endswith("in_proj_weight"):
                fill(parameter, parameter.shape[1] ** -0.5)
            elif name.endswith("in_proj_bias"):
                parameter.zero_()
            elif name == "logit_scale":
                parameter.fill_(scale)
            elif name == "logit_bias":
                parameter.fill_(bias)


def _depth(model: nn.Module, name: str) -> int:
    """The number of layers in the module's tower; 1 outside of towers."""
    tower = dict(model.named_modules()).get(name.split(".")[0])
    layers = getattr(tower, "layers", None)
    return len(layers) if layers is not None else 1
