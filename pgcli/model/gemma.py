"""The decoder: Gemma, first and second generation, from embedded slots to the next token's logits.

B rows · L new slots this pass · S slots so far · D width · N query heads · K key/value heads ·
G query heads per key/value head · H head size · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.attention import at_least_float32, grouped_attention, softcap
from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import AttentionMasks

#: Takes a layer's new keys and values, (B, K, L, H) each, and returns all so far.
Memory = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Remembering(Protocol):
    """What keeps the keys and values of every layer: a `Cache` or `Places`."""

    def claim_next(self) -> tuple[Tensor, AttentionMasks]: ...

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]: ...


class RMSNorm(nn.Module):
    """Scale to unit mean square, then by one plus the weight, in float32 up to the last cast."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.mul_(1 + at_least_float32(self.weight)).to(x.dtype)


class RotaryEmbedding:
    """Rotary position embedding: the cosines and sines of one pass, made once for all layers.

    The head is split in halves, not interleaved, as Gemma's weights expect. Angles are float32
    whatever the dtype: in bfloat16 positions past 256 would fall together.
    """

    def __init__(self, position_BL: Tensor, config: DecoderConfig, dtype: torch.dtype):
        wide = torch.promote_types(dtype, torch.float32)
        half = torch.arange(0, config.head_dim, 2, device=position_BL.device, dtype=wide)
        frequency = 1 / config.rope_theta ** (half / config.head_dim)
        angle_BLH = (position_BL[..., None].to(wide) * frequency).repeat(1, 1, 2)
        self.cos = angle_BLH.cos().to(dtype)[:, :, None]
        self.sin = angle_BLH.sin().to(dtype)[:, :, None]

    def __call__(self, x_BLNH: Tensor) -> Tensor:
        """The heads turned, of all slots or of as many of the last ones as are given."""
        cos, sin = self.cos[:, -x_BLNH.shape[1] :], self.sin[:, -x_BLNH.shape[1] :]
        first, second = x_BLNH.chunk(2, dim=-1)
        return x_BLNH * cos + torch.cat([-second, first], dim=-1) * sin


class QKVProjection(nn.Linear):
    """Queries, then keys, then values of all heads, from one fused product."""

    def __init__(self, width: int, queries: int, others: int):
        super().__init__(width, queries + others, bias=False)
        self.split_sizes = (queries, others)

    def last_query(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """The last slot's queries (B, 1, N * H), and every slot's keys and values in a row."""
        queries, others = torch.split_with_sizes(self.weight, self.split_sizes)
        return F.linear(x_BLD[:, -1:], queries), F.linear(x_BLD, others)


class GemmaAttention(nn.Module):
    """Grouped-query attention; query head n shares key/value head n // G."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        self.heads = (heads, kv_heads)
        self.head_dim = size
        self.scale, self.cap = config.query_scale, config.attn_softcap
        self.qkv_proj = QKVProjection(config.width, heads * size, 2 * kv_heads * size)
        self.o_proj = nn.Linear(heads * size, config.width, bias=False)

    def forward(
        self,
        x_BLD: Tensor,
        rotate: RotaryEmbedding,
        mask: Tensor | None,
        memory: Memory | None,
        last_only: bool = False,
    ) -> Tensor:
        """What each slot read, (B, L, D); what the last one read alone, (B, 1, D)."""
        query_BLNH, key_BLKH, value_BLKH = self._projected(x_BLD, rotate, last_only)
        key_BKSH, value_BKSH = key_BLKH.transpose(1, 2), value_BLKH.transpose(1, 2)
        if memory is not None:
            key_BKSH, value_BKSH = memory(key_BKSH, value_BKSH)
        if last_only and mask is not None:
            mask = mask[:, :, -1:]
        read = grouped_attention(
            query_BLNH, key_BKSH, value_BKSH, mask, scale=self.scale, cap=self.cap
        )
        out_BLD: Tensor = self.o_proj(read)
        return out_BLD

    def _projected(
        self, x_BLD: Tensor, rotate: RotaryEmbedding, last_only: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, of the last slot alone if that is all that is wanted, keys and values."""
        size = (-1, self.head_dim)
        if last_only:
            queries, others = self.qkv_proj.last_query(x_BLD)
            key_BLKH, value_BLKH = torch.unflatten(others, -1, size).chunk(2, dim=2)
            return rotate(torch.unflatten(queries, -1, size)), rotate(key_BLKH), value_BLKH
        heads, kv_heads = self.heads
        all_BLxH = torch.unflatten(self.qkv_proj(x_BLD), -1, size)
        turning, value_BLKH = torch.split_with_sizes(all_BLxH, (heads + kv_heads, kv_heads), dim=2)
        query_BLNH, key_BLKH = torch.split_with_sizes(rotate(turning), self.heads, dim=2)
        return query_BLNH, key_BLKH, value_BLKH


class GemmaMLP(nn.Module):
    """GeGLU with the tanh approximation; gate and up come from one fused product."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.width, 2 * config.mlp_dim, bias=False)
        self.down_proj = nn.Linear(config.mlp_dim, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.gelu(gate, approximate="tanh") * up)
        return out


class GemmaDecoderLayer(nn.Module):
    """GemmaAttention, then an MLP, each added to what came in.

    The first generation normalises what each reads, the second also what each writes; there
    `post_attention_layernorm` is the norm of attention's output, and the MLP's has another name.
    """

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.self_attn = GemmaAttention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.mlp = GemmaMLP(config)
        self.post_norms = config.post_norms
        if config.post_norms:
            self.pre_feedforward_layernorm = RMSNorm(config.width, config.norm_eps)
            self.post_feedforward_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        rotate: RotaryEmbedding,
        mask: Tensor | None,
        memory: Memory | None,
        last_only: bool = False,
    ) -> Tensor:
        """The slots with what this layer adds, or the last one alone."""
        read = self.self_attn(self.input_layernorm(x), rotate, mask, memory, last_only)
        x = x[:, -1:] if last_only else x
        if self.post_norms:
            x = x + self.post_attention_layernorm(read)
            out: Tensor = x + self.post_feedforward_layernorm(
                self.mlp(self.pre_feedforward_layernorm(x))
            )
        else:
            x = x + read
            out = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Gemma(nn.Module):
    """The decoder's trunk and its two ends, which share one matrix unless `tied` is False."""

    def __init__(self, config: DecoderConfig, *, tied: bool = True):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(GemmaDecoderLayer(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = None if tied else nn.Linear(config.width, config.vocab_size, bias=False)
        #: What gives the scores in place of the head's weights, where something was made of them.
        self.scores: Callable[[Tensor], Tensor] | None = None

    @property
    def head(self) -> Tensor:
        """The weights (V, D) that give the vocabulary's scores."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        weight: Tensor = head.weight
        return weight

    def embed(self, token_BT: Tensor) -> Tensor:
        """Token embeddings (B, T, D) times sqrt(D), a factor rounded to the weights' dtype."""
        weight = self.embed_tokens.weight
        scale = torch.tensor(self.config.width**0.5, dtype=weight.dtype, device=weight.device)
        return F.embedding(token_BT, weight) * scale

    def forward(
        self,
        x_BLD: Tensor,
        position_BL: Tensor,
        masks: AttentionMasks,
        remembered: Remembering | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """The new slots' last hidden states (B, L, D), normalised, or the last one's (B, 1, D).

        Where the last slot alone is wanted, the last layer reads no more than it must for it.
        """
        rotate = RotaryEmbedding(position_BL, self.config, x_BLD.dtype)
        for number, layer in enumerate(self.layers):
            mask = masks.sliding if self.config.is_sliding(number) else masks.full
            memory = None if remembered is None else partial(remembered.write, number)
            is_last = number == self.config.depth - 1
            x_BLD = layer(x_BLD, rotate, mask, memory, last_only and is_last)
        out: Tensor = self.norm(x_BLD[:, -1:] if last_only else x_BLD)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Scores over the vocabulary (..., V) for normalised hidden states (..., D).

        Softly bounded ones are float32: in bfloat16 the best would often be equal.
        """
        logits = F.linear(x, self.head) if self.scores is None else self.scores(x)
        cap = self.config.final_softcap
        return logits if cap is None else softcap(logits, cap)
