"""The Gemma decoder for inference on a GPU: the same weights, in fewer and larger kernels.

B rows · L new slots this pass · D width · S slots
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

import pgcli.model.cuda.operators  # noqa: F401, registers torch.ops.pgcli
from pgcli.model.attention import AttentionMasks, at_least_float32, grouped_attention
from pgcli.model.gemma import Gemma, GemmaAttention, GemmaDecoderLayer, RMSNorm, RotaryEmbedding
from pgcli.model.kv_cache import KVCache
from pgcli.model.quantized import QuantizedMLP
from pgcli.model.siglip import SiglipEncoderLayer, SiglipMLP, SiglipVisionModel, activate

kernels = torch.ops.pgcli
kernels = torch.ops.pgcli
#: For fewer images, launching the fused kernels takes the host longer than the GPU computes.
MIN_IMAGES = 64


class FusedGemma(Gemma):
    """A `Gemma` with fused norms, residuals, GeGLU and decode attention; without gradients.

    A layer of a decode step is eight or nine kernels: four products, attention with rotation and
    cache write (and a second kernel if slots are split), two norms with residuals, GeGLU.
    """

    def __init__(self, decoder: Gemma):
        nn.Module.__init__(self)
        self.config, self.residual_scale = decoder.config, decoder.residual_scale
        self.peak_L = decoder.peak_L
        for name, module in decoder.named_children():
            self.add_module(name, module)
        layers = list(cast(Iterable[GemmaDecoderLayer], self.layers))
        following = [*(_scale(layer.input_layernorm) for layer in layers[1:]), _scale(self.norm)]
        self._first = _scale(layers[0].input_layernorm)
        self._scales = [_layer_scales(*pair) for pair in zip(layers, following, strict=True)]
        self._head_scales = [_head_scales(layer.self_attn) for layer in layers]

    def forward(
        self,
        x_BLD: Tensor,
        position_BL: Tensor,
        masks: AttentionMasks,
        kv_cache: KVCache | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """As `Gemma.forward`."""
        eps = self.config.norm_eps
        is_step = kv_cache is not None and kv_cache.newest_slot_B is not None
        full = sliding = None
        if not is_step:
            full, sliding = RotaryEmbedding.of_layers(position_BL, self.config, x_BLD.dtype)
        x, normed = x_BLD, kernels.rms_norm(x_BLD, self._first, eps)
        self.watch(0, x)
        for index, layer in enumerate(cast(Iterable[GemmaDecoderLayer], self.layers)):
            post_attention, before_mlp, post_mlp, following = self._scales[index]
            is_sliding = self.config.is_sliding(index)
            mask = masks.sliding if is_sliding else masks.full
            rotary = sliding if is_sliding else full
            trims = last_only and index == self.config.depth - 1
            if rotary is None:
                attention = self._step_attention(index, layer, normed, position_BL, mask, kv_cache)
            elif kv_cache is None or trims:
                update = None if kv_cache is None else partial(kv_cache.write, index)
                attention = layer.self_attn(normed, rotary, mask, update, trims)
                x = x[:, -1:] if trims else x
            else:
                attention = self._prefill_attention(index, layer, normed, rotary, mask, kv_cache)
            norm = (x, attention, post_attention, before_mlp, eps)
            if isinstance(layer.mlp, QuantizedMLP):
                x, quantized, scale = kernels.residual_norm_quantized(*norm)
                mlp = layer.mlp.forward_quantized(quantized, scale)
            else:
                x, normed = kernels.residual_norm(*norm)
                mlp = layer.mlp.down_proj(kernels.geglu(layer.mlp.gate_up_proj(normed)))
            x, normed = kernels.residual_norm(x, mlp, post_mlp, following, eps)
            self.watch(index + 1, x)
        out: Tensor = normed
        return out

    def _step_attention(
        self,
        index: int,
        layer: GemmaDecoderLayer,
        normed_B1D: Tensor,
        position_B1: Tensor,
        mask_B11S: Tensor | None,
        kv_cache: KVCache | None,
    ) -> Tensor:
        assert kv_cache is not None
        assert kv_cache.newest_slot_B is not None
        attention, config = layer.self_attn, self.config
        key_BKSH, value_BKSH = kv_cache.layer(index)
        dtype = torch.promote_types(normed_B1D.dtype, torch.float32)
        out_BX = kernels.attend(
            attention.qkv_proj(normed_B1D)[:, 0],
            position_B1[:, 0],
            RotaryEmbedding.frequency(
                config, dtype, normed_B1D.device, sliding=config.is_sliding(index)
            ),
            key_BKSH,
            value_BKSH,
            kv_cache.real_BS if mask_B11S is None else mask_B11S[:, 0, 0],
            kv_cache.newest_slot_B,
            attention.scale,
            attention.cap or 0.0,
            *(*self._head_scales[index], config.norm_eps),
        )
        out_B1D: Tensor = attention.o_proj(out_BX[:, None])
        return out_B1D

    def _prefill_attention(
        self,
        index: int,
        layer: GemmaDecoderLayer,
        normed_BLD: Tensor,
        rotary: RotaryEmbedding,
        mask: Tensor | None,
        kv_cache: KVCache,
    ) -> Tensor:
        """Attention of new slots; one kernel rotates their keys and values into the cache."""
        attention, new = layer.self_attn, kv_cache.opened
        assert new is not None
        key_BKSH, value_BKSH = (every[:, :, : new.stop] for every in kv_cache.layer(index))
        query_BLNH = kernels.rotate(
            attention.qkv_proj(normed_BLD),
            *(rotary.cos, rotary.signed_sin, key_BKSH[:, :, new], value_BKSH[:, :, new]),
            *(*self._head_scales[index], self.config.norm_eps),
        )
        out_BLX = grouped_attention(
            *(query_BLNH, key_BKSH, value_BKSH, mask), scale=attention.scale, cap=attention.cap
        )
        out_BLD: Tensor = attention.o_proj(out_BLX)
        return out_BLD

    def logits(self, x: Tensor) -> Tensor:
        """As `Gemma.logits`."""
        logits: Tensor = self.lm_head(x, self.embed_tokens.weight)
        cap = self.config.final_softcap
        return logits if cap is None else kernels.softcap(logits, cap)


def _scale(norm: RMSNorm) -> Tensor:
    """`1 + w` in float32: rounded to bfloat16, outputs would change by up to 3e-2."""
    return 1 + at_least_float32(norm.weight.detach())


def _layer_scales(
    layer: GemmaDecoderLayer, following: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor]:
    """The scales of a layer's norms: after attention, before and after the MLP, and of the next
    layer's first norm.
    """
    second = _scale(layer.post_attention_layernorm)
    if not layer.post_norms:
        return None, second, None, following
    before_mlp = _scale(layer.pre_feedforward_layernorm)
    return second, before_mlp, _scale(layer.post_feedforward_layernorm), following


def _head_scales(attention: GemmaAttention) -> tuple[Tensor | None, Tensor | None]:
    """The scales of the norms of queries and keys; None without norms."""
    if not attention.qk_norm:
        return None, None
    return _scale(attention.q_norm), _scale(attention.k_norm)


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
