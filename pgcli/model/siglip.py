"""The SigLIP vision tower: pixels in, one vector per patch out.

B images · C channels · R resolution · P patches · D width · N heads · H head size
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.config import VisionConfig


class SiglipEmbeddings(nn.Module):
    """Patch embeddings plus position embeddings."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        size = config.patch_size
        # stored as a convolution, computed as a matrix product, which cuDNN cannot run in tf32
        self.patch_embedding = nn.Conv2d(3, config.width, kernel_size=size, stride=size)
        self.position_embedding = nn.Embedding(config.num_patches, config.width)

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        size = self.patch_embedding.kernel_size[0]
        rows = torch.unflatten(torch.unflatten(pixels_BCRR, 3, (-1, size)), 2, (-1, size))
        patch_BPx = rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        weight = self.patch_embedding.weight.flatten(1)
        return (
            F.linear(patch_BPx, weight, self.patch_embedding.bias) + self.position_embedding.weight
        )


class SiglipAttention(nn.Module):
    """Self-attention of all patches; queries, keys and values come from one matrix product."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv_proj = nn.Linear(config.width, 3 * config.width)
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, x_BPD: Tensor) -> Tensor:
        qkv = self.qkv_proj(x_BPD).unflatten(-1, (3, self.num_heads, -1))
        query_BNPH, key_BNPH, value_BNPH = qkv.permute(2, 0, 3, 1, 4)
        out_BNPH = F.scaled_dot_product_attention(query_BNPH, key_BNPH, value_BNPH)
        out_BPD: Tensor = self.out_proj(out_BNPH.transpose(1, 2).flatten(2))
        return out_BPD


class SiglipMLP(nn.Module):
    """Two linear layers around GELU in its tanh approximation."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_dim)
        self.fc2 = nn.Linear(config.mlp_dim, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class SiglipEncoderLayer(nn.Module):
    """Attention and MLP with pre-norm, each with a residual connection."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.self_attn = SiglipAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = SiglipMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class SiglipVisionModel(nn.Module):
    """The vision tower without pooling: one vector per patch, in row-major order."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.embeddings = SiglipEmbeddings(config)
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(config.depth))
        self.post_layernorm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        """Patch features (B, P, D) of images normalized to -1 ... 1."""
        x_BPD: Tensor = self.embeddings(pixels_BCRR)
        for layer in self.layers:
            x_BPD = layer(x_BPD)
        out: Tensor = self.post_layernorm(x_BPD)
        return out


def normalize_pixels(pixels_BRRC: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 images (B, R, R, C) to normalized ones (B, C, R, R), rounded as in transformers."""
    scaled = pixels_BRRC.to(torch.promote_types(dtype, torch.float32)) * (1 / 255)
    return ((scaled - mean) / std).permute(0, 3, 1, 2).to(dtype)
