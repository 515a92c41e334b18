"""Plain versions of the fused operators.

The kernels are compared with them. They run where there are no kernels: on other devices, and on
a GPU for dtypes or sizes that the kernels do not support. The plain `rms_norm` and `softcap` are
in the model itself.

B rows · L new slots · D width · X queries, keys and values of all heads · N query heads ·
K key/value heads · H head size · S slots · V vocabulary · M rows of any kind
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention import at_least_float32, grouped_attention
from pgcli.model.gemma import RotaryEmbedding, rms_norm, rotated
from pgcli.model.quantize import FLOAT8, quantize_per_row


def residual_norm(
    x: Tensor, delta: Tensor, post_scale_D: Tensor | None, scale_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`x + delta`, with a norm of `delta` first if it has a scale; and the norm of the sum."""
    if post_scale_D is not None:
        delta = rms_norm(delta, post_scale_D, eps)
    total = x + delta
    return total, rms_norm(total, scale_D, eps)


def residual_layer_norm(
    x: Tensor, delta: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`x + delta`, and the LayerNorm of the sum."""
    total = x + delta
    return total, F.layer_norm(total, weight_D.shape, weight_D, bias_D, eps)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU (tanh approximation) of a linear layer's output."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def geglu(gate_up: Tensor) -> Tensor:
    """GELU (tanh approximation) of the first half of (..., 2 * M), times the second half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def residual_norm_quantized(
    x: Tensor,
    delta: Tensor,
    post_scale_D: Tensor | None,
    scale_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`residual_norm` with the norm quantized to float8, and each row's scale."""
    total, normed = residual_norm(x, delta, post_scale_D, scale_D, eps)
    return total, *quantize_per_row(normed, FLOAT8)


def geglu_quantized(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`geglu` quantized to float8, and each row's scale."""
    return quantize_per_row(geglu(gate_up), FLOAT8)


def attend(
    qkv_BX: Tensor,
    position_B: Tensor,
    frequency: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_BS: Tensor,
    slot_B: Tensor,
    scale: float,
    cap: float,
    query_scale_H: Tensor | None,
    key_scale_H: Tensor | None,
    eps: float,
) -> Tensor:
    """Attention of a decode step: rotate queries and keys, store the new slot, and attend (B, X).

    `slot_B` is each row's new slot; later slots are not read. `mask_BS` is False on padding and
    outside the window; `cap` 0 means no softcap. With scales, queries and keys are normalized.
    """
    rows, kv_heads, _, size = key_BKSH.shape
    qkv_B1xH = qkv_BX.view(rows, 1, -1, size)
    heads = qkv_B1xH.shape[2] - 2 * kv_heads
    qk_B1xH, value_B1KH = torch.split_with_sizes(qkv_B1xH, (heads + kv_heads, kv_heads), dim=2)
    qk_B1xH = _normed_heads(qk_B1xH, heads, query_scale_H, key_scale_H, eps)
    rotary = RotaryEmbedding(position_B[:, None], frequency, qkv_BX.dtype)
    query_B1NH, key_B1KH = torch.split_with_sizes(rotary(qk_B1xH), (heads, kv_heads), dim=2)
    index_BK1H = slot_B[:, None, None, None].expand(-1, kv_heads, 1, size)
    key_BKSH.scatter_(2, index_BK1H, key_B1KH.transpose(1, 2))
    value_BKSH.scatter_(2, index_BK1H, value_B1KH.transpose(1, 2))
    read = mask_BS.shape[1]
    key_BKSH, value_BKSH = key_BKSH[:, :, :read], value_BKSH[:, :, :read]
    mask_B11S = mask_BS[:, None, None]
    return grouped_attention(
        query_B1NH, key_BKSH, value_BKSH, mask_B11S, scale=scale, cap=cap or None
    )[:, 0]


def rotate(
    qkv_BLX: Tensor,
    cos_BL1H: Tensor,
    signed_sin_BL1H: Tensor,
    key_BKLH: Tensor,
    value_BKLH: Tensor,
    query_scale_H: Tensor | None,
    key_scale_H: Tensor | None,
    eps: float,
) -> Tensor:
    """The rotated queries (B, L, N, H) of a prefill; rotated keys and values go to the cache.

    With scales, queries and keys are normalized.
    """
    kv_heads, size = key_BKLH.shape[1], key_BKLH.shape[3]
    qkv_BLxH = torch.unflatten(qkv_BLX, -1, (-1, size))
    heads = qkv_BLxH.shape[2] - 2 * kv_heads
    qk_BLxH, value_BLKH = torch.split_with_sizes(qkv_BLxH, (heads + kv_heads, kv_heads), dim=2)
    qk_BLxH = _normed_heads(qk_BLxH, heads, query_scale_H, key_scale_H, eps)
    qk_BLxH = rotated(qk_BLxH, cos_BL1H, signed_sin_BL1H)
    query_BLNH, key_BLKH = torch.split_with_sizes(qk_BLxH, (heads, kv_heads), dim=2)
    key_BKLH.copy_(key_BLKH.transpose(1, 2))
    value_BKLH.copy_(value_BLKH.transpose(1, 2))
    return query_BLNH.contiguous()


def _normed_heads(
    qk: Tensor, heads: int, query_scale_H: Tensor | None, key_scale_H: Tensor | None, eps: float
) -> Tensor:
    """Queries and keys (B, L, N + K, H) after their norms, if they have any."""
    if query_scale_H is None or key_scale_H is None:
        return qk
    query, key = torch.split_with_sizes(qk, (heads, qk.shape[2] - heads), dim=2)
    return torch.cat([rms_norm(query, query_scale_H, eps), rms_norm(key, key_scale_H, eps)], dim=2)


def select_greedy(
    logits_BV: Tensor, size: int, excluded: int, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest token below `size`, except `excluded`, and its log-probability in float32.

    The third output is the log-probability of all `locations` at most `near` positions from it.
    """
    column_V = torch.arange(size, device=logits_BV.device)
    wide_BV = at_least_float32(logits_BV[:, :size]).masked_fill(column_V == excluded, -torch.inf)
    return _chosen(wide_BV, wide_BV.argmax(-1), first_location, locations, near)


def _chosen(
    wide_BV: Tensor, token_B: Tensor, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens, their log-probabilities, and the log-probabilities of locations near them."""
    column_V, total_B = torch.arange(wide_BV.shape[1], device=wide_BV.device), wide_BV.logsumexp(-1)
    logprob_B = wide_BV.gather(1, token_B[:, None])[:, 0] - total_B
    is_location = (column_V >= first_location) & (column_V < first_location + locations)
    is_near_BV = is_location & ((column_V - token_B[:, None]).abs() <= near)
    near_logprob_B = wide_BV.masked_fill(~is_near_BV, -torch.inf).logsumexp(-1) - total_B
    return token_B, logprob_B.float(), near_logprob_B.float()
