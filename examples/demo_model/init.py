"""Initial weights that shorten the training of a small PaliGemma.

N patches of several images · X values of a patch · P patches of an image · D width
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pgcli.model.paligemma import PaliGemma


def init_weights(model: PaliGemma, seed: int) -> None:
    """Fill the parameters with random numbers that keep the variance of activations constant."""
    generator = torch.Generator().manual_seed(seed)

    def fill(weight: Tensor, std: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)

    depths = {"vision": model.config.vision.depth, "decoder": model.config.decoder.depth}
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.endswith("position_embedding"):
                module.weight.copy_(sincos_2d(*module.weight.shape))
            elif isinstance(module, nn.Embedding):
                fill(module.weight, module.embedding_dim**-0.5)
            elif isinstance(module, nn.Linear | nn.Conv2d):
                is_residual = name.endswith(("o_proj", "out_proj", "down_proj", "fc2"))
                branches = 2 * depths.get(name.split(".")[0], 1) if is_residual else 1
                fill(module.weight, (module.weight[0].numel() * branches) ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()
            if name.endswith("self_attn") and name.startswith("vision"):
                _mimetic_init(module.qkv_proj.weight)


def _mimetic_init(qkv_weight: Tensor) -> None:
    """Copy the query weights to the keys, so that a patch first attends to similar patches.

    Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers", 2023.
    """
    width = qkv_weight.shape[1]
    qkv_weight[width : 2 * width] = qkv_weight[:width]


@torch.no_grad()
def whiten_patches(embedding: nn.Conv2d, pixels_BCRR: Tensor) -> None:
    """Make the embedding the principal components of the images' patches, with equal variances.

    The thin strokes of letters, which are a small part of the variance, are then as large as areas.
    """
    size = embedding.kernel_size[0]
    columns = nn.functional.unfold(pixels_BCRR.double(), size, stride=size)
    patch_NX = columns.movedim(1, 2).flatten(0, 1)
    mean_X = patch_NX.mean(0)
    covariance_XX = (patch_NX - mean_X).T @ (patch_NX - mean_X) / len(patch_NX)
    variance_X, component_XX = torch.linalg.eigh(covariance_XX)  # the largest variance comes last
    variance_D = variance_X[-embedding.out_channels :]
    filter_DX = component_XX.T[-embedding.out_channels :]
    filter_DX = filter_DX / (variance_D + 0.1 * variance_D[0]).sqrt()[:, None]
    embedding.weight.copy_(filter_DX.reshape(embedding.weight.shape))
    assert embedding.bias is not None
    embedding.bias.copy_(-filter_DX @ mean_X)


def sincos_2d(patches: int, width: int) -> Tensor:
    """Sine and cosine position embeddings (P, D) of each patch's row and column.

    A vision tower learns positions from them much faster than from random embeddings.
    """
    patches_per_side = math.isqrt(patches)
    index_P = torch.arange(patches)
    frequency = 1 / patches_per_side ** (torch.arange(width // 4) / (width // 4))
    rows_and_columns = (index_P // patches_per_side, index_P % patches_per_side)
    angles = [axis[:, None] * frequency for axis in rows_and_columns]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)
