"""The decoder of Gemma, Gemma 2 and Gemma 3: embedded slots in, logits of the next token out.

B rows · T prompt tokens · L new slots this pass · S slots so far · D width · N query heads ·
K key/value heads · G query heads per key/value head · H head size · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pgcli.model.attention import (
    AttentionMasks,
    at_least_float32,
    attention_weights,
    grouped_attention,
    softcap,
)
from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import KVCache

#: Stores a layer's new keys and values, (B, K, L, H) each, and returns all of them so far.
UpdateCache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@cache
def rounded(value: float, dtype: torch.dtype) -> float:
    """The nearest value in the dtype, as a Python number, so that no tensor is made on a device."""
    return float(torch.tensor(value, dtype=dtype, device="cpu"))


class RMSNorm(nn.Module):
    """Root-mean-square norm with weight `1 + w`, computed in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, 1 + at_least_float32(self.weight), self.eps)


def rms_norm(x: Tensor, scale_D: Tensor, eps: float) -> Tensor:
    """The root-mean-square norm of `x`, times `scale`; computed in float32."""
    wide = at_least_float32(x)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.mul_(scale_D).to(x.dtype)


class RotaryEmbedding:
    """The cosines and sines of one pass's positions, computed once for all layers.

    The head is split into halves, not interleaved, like Gemma's weights. Angles are float32 for
    every dtype, as bfloat16 cannot represent every position above 256.
    """

    def __init__(self, position_BL: Tensor, frequency: Tensor, dtype: torch.dtype):
        angle_BL1h = position_BL[..., None, None] * frequency
        cos, sin = angle_BL1h.cos().to(dtype), angle_BL1h.sin().to(dtype)
        self.cos = torch.cat([cos, cos], dim=-1)
        # with the sign here, heads need no negation
        self.signed_sin = torch.cat([-sin, sin], dim=-1)

    @classmethod
    def of(
        cls,
        position_BL: Tensor,
        config: DecoderConfig,
        dtype: torch.dtype,
        *,
        sliding: bool = False,
    ) -> RotaryEmbedding:
        """The rotation of this pass in the dtype, for sliding or for the other layers."""
        wide = torch.promote_types(dtype, torch.float32)
        frequency = cls.frequency(config, wide, position_BL.device, sliding=sliding)
        return cls(position_BL, frequency, dtype)

    @classmethod
    def of_layers(
        cls, position_BL: Tensor, config: DecoderConfig, dtype: torch.dtype
    ) -> tuple[RotaryEmbedding, RotaryEmbedding]:
        """The rotations of this pass for full and for sliding layers, one if they are equal."""
        full = cls.of(position_BL, config, dtype)
        if config.local_rope_theta is None:
            return full, full
        return full, cls.of(position_BL, config, dtype, sliding=True)

    @staticmethod
    @cache
    def frequency(
        config: DecoderConfig, dtype: torch.dtype, device: torch.device, *, sliding: bool = False
    ) -> Tensor:
        """The angle (H / 2,) by which each pair of values turns from one position to the next."""
        half = torch.arange(0, config.head_dim, 2, device=device, dtype=dtype)
        if sliding and config.local_rope_theta is not None:
            return 1 / config.local_rope_theta ** (half / config.head_dim)
        frequency = 1 / config.rope_theta ** (half / config.head_dim)
        return frequency if config.rope_factor == 1 else frequency / config.rope_factor

    def __call__(self, x_BLNH: Tensor) -> Tensor:
        """The rotated heads of all slots, or of the last ones if `x` has fewer."""
        length = x_BLNH.shape[1]
        return rotated(x_BLNH, self.cos[:, -length:], self.signed_sin[:, -length:])


def rotated(x_BLNH: Tensor, cos_BL1H: Tensor, signed_sin_BL1H: Tensor) -> Tensor:
    """The heads, with their halves rotated by the angles of a `RotaryEmbedding`."""
    first, second = x_BLNH.chunk(2, dim=-1)
    return x_BLNH * cos_BL1H + torch.cat([second, first], dim=-1) * signed_sin_BL1H


class QKVProjection(nn.Linear):
    """Queries, keys and values of all heads, in this order, from one matrix product."""

    def __init__(self, width: int, query_size: int, key_value_size: int):
        super().__init__(width, query_size + key_value_size, bias=False)
        self.split_sizes = (query_size, key_value_size)

    def last_query(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """The last slot's queries (B, 1, N * H); keys and values of all slots (B, L, 2 * K * H)."""
        query, key_value = torch.split_with_sizes(self.weight, self.split_sizes)
        return F.linear(x_BLD[:, -1:], query), F.linear(x_BLD, key_value)


class GemmaAttention(nn.Module):
    """Grouped-query attention; query head n uses key/value head n // G."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        self.num_heads, self.num_kv_heads, self.head_dim = heads, kv_heads, size
        self.scale, self.cap = config.query_scale, config.attn_softcap
        self.qkv_proj = QKVProjection(config.width, heads * size, 2 * kv_heads * size)
        self.o_proj = nn.Linear(heads * size, config.width, bias=False)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(size, config.norm_eps)
            self.k_norm = RMSNorm(size, config.norm_eps)

    def forward(
        self,
        x_BLD: Tensor,
        rotary: RotaryEmbedding,
        mask: Tensor | None,
        update_cache: UpdateCache | None,
        last_only: bool = False,
    ) -> Tensor:
        """The output of every slot (B, L, D), or of the last slot only (B, 1, D)."""
        query_BLNH, key_BLKH, value_BLKH = self.project(x_BLD, rotary, last_only)
        key_BKSH, value_BKSH = key_BLKH.transpose(1, 2), value_BLKH.transpose(1, 2)
        if update_cache is not None:
            key_BKSH, value_BKSH = update_cache(key_BKSH, value_BKSH)
        if last_only and mask is not None:
            mask = mask[:, :, -1:]
        attention = grouped_attention(
            query_BLNH, key_BKSH, value_BKSH, mask, scale=self.scale, cap=self.cap
        )
        out_BLD: Tensor = self.o_proj(attention)
        return out_BLD

    def weights(self, x_BLD: Tensor, rotary: RotaryEmbedding, mask: Tensor | None) -> Tensor:
        """The attention weights (B, N, L, S) of a pass without a cache, in float32."""
        query_BLNH, key_BLKH, _ = self.project(x_BLD, rotary, last_only=False)
        key_BKSH = key_BLKH.transpose(1, 2)
        return attention_weights(query_BLNH, key_BKSH, mask, scale=self.scale, cap=self.cap)

    def project(
        self, x_BLD: Tensor, rotary: RotaryEmbedding, last_only: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys, and values; queries of the last slot if `last_only`."""
        head = (-1, self.head_dim)
        if last_only:
            query, key_value = self.qkv_proj.last_query(x_BLD)
            query_BLNH = torch.unflatten(query, -1, head)
            key_BLKH, value_BLKH = torch.unflatten(key_value, -1, head).chunk(2, dim=2)
            if self.qk_norm:
                query_BLNH, key_BLKH = self.q_norm(query_BLNH), self.k_norm(key_BLKH)
            return rotary(query_BLNH), rotary(key_BLKH), value_BLKH
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv_BLxH = torch.unflatten(self.qkv_proj(x_BLD), -1, head)
        qk_BLxH, value_BLKH = torch.split_with_sizes(qkv_BLxH, (heads + kv_heads, kv_heads), dim=2)
        if not self.qk_norm:
            qk_BLxH = rotary(qk_BLxH)
        query_BLNH, key_BLKH = torch.split_with_sizes(qk_BLxH, (heads, kv_heads), dim=2)
        if self.qk_norm:
            query_BLNH, key_BLKH = rotary(self.q_norm(query_BLNH)), rotary(self.k_norm(key_BLKH))
        return query_BLNH, key_BLKH, value_BLKH


class GemmaMLP(nn.Module):
    """GeGLU in the tanh approximation; gate and up come from one matrix product."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.width, 2 * config.mlp_dim, bias=False)
        self.down_proj = nn.Linear(config.mlp_dim, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.gelu(gate, approximate="tanh") * up)
        return out


class GemmaDecoderLayer(nn.Module):
    """Attention and MLP, each with a residual connection.

    Gemma normalizes the inputs of both; Gemma 2 and 3 normalize their outputs too. There,
    `post_attention_layernorm` is the norm of attention's output, not of the MLP's input.
    """

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.self_attn = GemmaAttention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.mlp = GemmaMLP(config)
        self.post_norms = config.post_norms
        self.dropout = 0.0
        if config.post_norms:
            self.pre_feedforward_layernorm = RMSNorm(config.width, config.norm_eps)
            self.post_feedforward_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        rotary: RotaryEmbedding,
        mask: Tensor | None,
        update_cache: UpdateCache | None,
        last_only: bool = False,
    ) -> Tensor:
        """The hidden states of every slot, or of the last slot only."""
        attention = self.self_attn(self.input_layernorm(x), rotary, mask, update_cache, last_only)
        x = x[:, -1:] if last_only else x
        if self.post_norms:
            x = x + self.dropped(self.post_attention_layernorm(attention))
            mlp = self.mlp(self.pre_feedforward_layernorm(x))
            out: Tensor = x + self.dropped(self.post_feedforward_layernorm(mlp))
        else:
            x = x + self.dropped(attention)
            out = x + self.dropped(self.mlp(self.post_attention_layernorm(x)))
        return out

    def dropped(self, x: Tensor) -> Tensor:
        """The output of a residual branch, with dropout in training, as in big_vision."""
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class LMHead(nn.Module):
    """Logits from hidden states, with its own weight or, if tied, the embedding's."""

    def __init__(self, config: DecoderConfig, *, tied: bool):
        super().__init__()
        self.weight: nn.Parameter | None = None
        if not tied:
            weight_VD = torch.empty(config.vocab_size, config.width)
            self.weight = nn.Parameter(nn.init.normal_(weight_VD, std=config.width**-0.5))

    def forward(self, x: Tensor, embedding_VD: Tensor) -> Tensor:
        return F.linear(x, embedding_VD if self.weight is None else self.weight)


class Gemma(nn.Module):
    """The decoder: embedding, layers and LM head. `tied`: the head uses the embedding's weight.

    With `gradient_checkpointing`, a layer's activations are recomputed in the backward pass.
    `residual_scale` is the factor of all hidden states. `peak_L` is None, or has the largest
    absolute value so far of the first hidden states and of each layer's output.
    """

    gradient_checkpointing = False
    residual_scale = 1.0
    peak_L: Tensor | None = None

    def __init__(self, config: DecoderConfig, *, tied: bool = True):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(GemmaDecoderLayer(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = LMHead(config, tied=tied)

    def embed(self, token_BT: Tensor) -> Tensor:
        """Token embeddings (B, T, D) times sqrt(D), a factor rounded to the weights' dtype."""
        x_BTD: Tensor = self.embed_tokens(token_BT)
        return x_BTD * (rounded(self.config.width**0.5, x_BTD.dtype) * self.residual_scale)

    def watch(self, index: int, x: Tensor) -> None:
        """Record the largest absolute value of hidden states, if they are watched."""
        if self.peak_L is not None:
            peak = self.peak_L[index]
            peak.copy_(torch.maximum(peak, x.abs().amax()))

    def forward(
        self,
        x_BLD: Tensor,
        position_BL: Tensor,
        masks: AttentionMasks,
        kv_cache: KVCache | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """Normalized hidden states of the new slots (B, L, D), or of the last one only (B, 1, D).

        With `last_only`, the last layer computes the query and the MLP of the last slot only.
        """
        full, sliding = RotaryEmbedding.of_layers(position_BL, self.config, x_BLD.dtype)
        self.watch(0, x_BLD)
        for index, layer in enumerate(self.layers):
            is_sliding = self.config.is_sliding(index)
            mask = masks.sliding if is_sliding else masks.full
            rotary = sliding if is_sliding else full
            update = None if kv_cache is None else partial(kv_cache.write, index)
            is_last = index == self.config.depth - 1
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BLD = checkpoint(layer, x_BLD, rotary, mask, update, use_reentrant=False)
            else:
                x_BLD = layer(x_BLD, rotary, mask, update, last_only and is_last)
            self.watch(index + 1, x_BLD)
        out: Tensor = self.norm(x_BLD[:, -1:] if last_only else x_BLD)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Logits (..., V) of normalized hidden states (..., D).

        Softcapped logits are float32, because in bfloat16 the largest ones would often be equal.
        """
        logits: Tensor = self.lm_head(x, self.embed_tokens.weight)
        cap = self.config.final_softcap
        return logits if cap is None else softcap(logits, cap)
