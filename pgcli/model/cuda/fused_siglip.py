"""The vision tower for inference on a GPU: the same weights, in fewer and larger kernels.

B images · C channels · R resolution · P patches (and the class token) · D width
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

import pgcli.model.cuda.operators  # noqa: F401, registers torch.ops.pgcli
from pgcli.model.siglip import SiglipEncoderLayer, SiglipMLP, SiglipVisionModel, activate

kernels = torch.ops.pgcli
#: For fewer images, launching the fused kernels takes the host longer than the GPU computes.
MIN_IMAGES = 64


class FusedSiglip(SiglipVisionModel):
    """A `SiglipVisionModel` with fused residuals and norms for many images at once.

    Without dropout and gradients.
    """

    def __init__(self, tower: SiglipVisionModel):
        nn.Module.__init__(self)
        self.pre_layernorm = None
        for name, module in tower.named_children():
            self.add_module(name, module)

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        """As `SiglipVisionModel.forward`."""
        if len(pixels_BCRR) < MIN_IMAGES:
            return super().forward(pixels_BCRR)
        x: Tensor = self.embeddings(pixels_BCRR)
        if self.pre_layernorm is not None:
            x = self.pre_layernorm(x)
        layers = list(cast(Iterable[SiglipEncoderLayer], self.layers))
        following = [*(layer.layer_norm1 for layer in layers[1:]), self.post_layernorm]
        normed: Tensor = layers[0].layer_norm1(x)
        for layer, norm in zip(layers, following, strict=True):
            x, normed = _residual_norm(x, layer.self_attn(normed), layer.layer_norm2)
            x, normed = _residual_norm(x, _mlp(layer.mlp, normed), norm)
        return normed


def _residual_norm(x_BPD: Tensor, delta_BPD: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """The sum, and the norm of the sum."""
    total, normed = kernels.residual_layer_norm(x_BPD, delta_BPD, norm.weight, norm.bias, norm.eps)
    return total, normed


def _mlp(mlp: SiglipMLP, x: Tensor) -> Tensor:
    if mlp.activation == "gelu_tanh":
        hidden = kernels.linear_gelu(x, mlp.fc1.weight, mlp.fc1.bias)
    else:
        hidden = activate(mlp.fc1(x), mlp.activation)
    out: Tensor = mlp.fc2(hidden)
    return out
