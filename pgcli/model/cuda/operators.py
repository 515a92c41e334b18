"""Operators of the fused decoder: each is one kernel on a GPU, and plain PyTorch elsewhere.

They have no gradients. The plain versions are what the kernels are compared with; they also run on
a GPU in dtypes, or for sizes, that the kernels do not have.

B rows · D width · X queries, keys and values of all heads · K key/value heads ·
H head size · S slots · V vocabulary · M rows of any kind · N output width
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention import at_least_float32, grouped_attention, softcap
from pgcli.model.gemma import RotaryEmbedding, rms_norm, rotated
from pgcli.model.quantized.quantize import quantize_per_row
from pgcli.model.sampling import ARGMAX, sample

LIBRARY = torch.library.Library("pgcli", "DEF")  # type: ignore[no-untyped-call]
#: The dtypes of the kernels, and the head sizes of those that multiply matrices.
KERNEL_DTYPES = (torch.bfloat16, torch.float32)
KERNEL_HEADS = (32, 64, 128, 256)


def residual_norm(
    x: Tensor, delta: Tensor, post_scale_D: Tensor | None, scale_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`x + delta`, with a norm of `delta` first if it has a scale; and the norm of the sum."""
    if post_scale_D is not None:
        delta = rms_norm(delta, post_scale_D, eps)
    total = x + delta
    return total, rms_norm(total, scale_D, eps)


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
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `residual_norm`, the norm quantized to this dtype, and each row's scale."""
    total, normed = residual_norm(x, delta, post_scale_D, scale_D, eps)
    return total, *quantize_per_row(normed, dtype)


def geglu_quantized(gate_up: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `geglu`, quantized to this dtype, and each row's scale."""
    return quantize_per_row(geglu(gate_up), dtype)


def int8_product(
    quantized_MD: Tensor,
    scale_M1: Tensor,
    weight_ND: Tensor,
    channel_scale_N: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The product of int8 values, summed in int32, times the scales of rows and channels."""
    total_MN = torch._int_mm(quantized_MD, weight_ND.T)
    return (total_MN * scale_M1 * channel_scale_N).to(dtype)


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
) -> Tensor:
    """Attention of a decode step: rotate queries and keys, store the new slot, and attend (B, X).

    `slot_B` is each row's new slot; slots behind it are not read. `mask_BS` is False on padding
    and outside the window; `cap` 0 is no softcap.
    """
    rows, kv_heads, _, size = key_BKSH.shape
    qkv_B1xH = qkv_BX.view(rows, 1, -1, size)
    heads = qkv_B1xH.shape[2] - 2 * kv_heads
    qk_B1xH, value_B1KH = torch.split_with_sizes(qkv_B1xH, (heads + kv_heads, kv_heads), dim=2)
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
) -> Tensor:
    """The rotated queries (B, L, N, H) of a prefill; rotated keys and values go to the cache."""
    kv_heads, size = key_BKLH.shape[1], key_BKLH.shape[3]
    qkv_BLxH = torch.unflatten(qkv_BLX, -1, (-1, size))
    heads = qkv_BLxH.shape[2] - 2 * kv_heads
    qk_BLxH, value_BLKH = torch.split_with_sizes(qkv_BLxH, (heads + kv_heads, kv_heads), dim=2)
    qk_BLxH = rotated(qk_BLxH, cos_BL1H, signed_sin_BL1H)
    query_BLNH, key_BLKH = torch.split_with_sizes(qk_BLxH, (heads, kv_heads), dim=2)
    key_BKLH.copy_(key_BLKH.transpose(1, 2))
    value_BKLH.copy_(value_BLKH.transpose(1, 2))
    return query_BLNH.contiguous()


def select_greedy(
    logits_BV: Tensor, size: int, excluded: int, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest token below `size`, other than `excluded`; its log-probability, float32.

    Third, the log-probability of all `locations` at most `near` places from it.
    """
    wide_BV = _valid(logits_BV, size, excluded)
    return _chosen(wide_BV, wide_BV.argmax(-1), first_location, locations, near)


def select_sampled(
    logits_BV: Tensor,
    draw_B: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    size: int,
    excluded: int,
    first_location: int,
    locations: int,
    near: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `select_greedy`, a token drawn by `sample`; the likeliest where the number is ARGMAX."""
    wide_BV = _valid(logits_BV, size, excluded)
    drawn_B = sample(wide_BV, draw_B, temperature, top_k, top_p)
    token_B = torch.where(draw_B == ARGMAX, wide_BV.argmax(-1), drawn_B)
    return _chosen(wide_BV, token_B, first_location, locations, near)


def _valid(logits_BV: Tensor, size: int, excluded: int) -> Tensor:
    """The logits of tokens below `size` in float32, with -inf for the excluded one."""
    column_V = torch.arange(size, device=logits_BV.device)
    return at_least_float32(logits_BV[:, :size]).masked_fill(column_V == excluded, -torch.inf)


def _chosen(
    wide_BV: Tensor, token_B: Tensor, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens, their log-probabilities, and those of all locations near them."""
    column_V, total_B = torch.arange(wide_BV.shape[1], device=wide_BV.device), wide_BV.logsumexp(-1)
    logprob_B = wide_BV.gather(1, token_B[:, None])[:, 0] - total_B
    is_location = (column_V >= first_location) & (column_V < first_location + locations)
    is_near_BV = is_location & ((column_V - token_B[:, None]).abs() <= near)
    near_logprob_B = wide_BV.masked_fill(~is_near_BV, -torch.inf).logsumexp(-1) - total_B
    return token_B, logprob_B.float(), near_logprob_B.float()


def _half(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


def _fake_quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    return torch.empty_like(x, dtype=dtype), scale


def _fake_select(logits_BV: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits_BV)
    logprob_B, near_logprob_B = logits_BV.new_empty(2, rows, dtype=torch.float32)
    return logits_BV.new_empty(rows, dtype=torch.long), logprob_B, near_logprob_B


def _fake_rotate(qkv_BLX: Tensor, _cos: Tensor, _sin: Tensor, key: Tensor, *_: object) -> Tensor:
    kv_heads, size = key.shape[1], key.shape[3]
    rows, length, width = qkv_BLX.shape
    return qkv_BLX.new_empty(rows, length, width // size - 2 * kv_heads, size)


def _fake_attend(
    qkv_BX: Tensor, _position: Tensor, _frequency: Tensor, key: Tensor, *_: object
) -> Tensor:
    return qkv_BX.new_empty(len(qkv_BX), qkv_BX.shape[1] - 2 * key.shape[1] * key.shape[3])


class Operator(NamedTuple):
    """An operator's arguments, its plain version, and its shapes on tensors without data.

    Its kernel takes a first tensor of one of `dtypes`.
    """

    schema: str
    plain: Callable[..., Any]
    fake: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = KERNEL_DTYPES


OPERATORS: dict[str, Operator] = {
    "rms_norm": Operator(
        "(Tensor x, Tensor scale, float eps) -> Tensor",
        rms_norm,
        lambda x, *_: torch.empty_like(x),
    ),
    "residual_norm": Operator(
        "(Tensor x, Tensor delta, Tensor? post_scale, Tensor scale, float eps) -> (Tensor, Tensor)",
        residual_norm,
        lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
    ),
    "geglu": Operator("(Tensor gate_up) -> Tensor", geglu, _half),
    "softcap": Operator(
        "(Tensor x, float cap) -> Tensor",
        softcap,
        lambda x, _: torch.empty_like(x, dtype=torch.float32),
    ),
    "attend": Operator(
        "(Tensor qkv, Tensor position, Tensor frequency, Tensor(a!) key, Tensor(b!) value, "
        "Tensor mask, Tensor slot, float scale, float cap) -> Tensor",
        attend,
        _fake_attend,
    ),
    "rotate": Operator(
        "(Tensor qkv, Tensor cos, Tensor signed_sin, Tensor(a!) key, Tensor(b!) value) -> Tensor",
        rotate,
        _fake_rotate,
    ),
    "select_greedy": Operator(
        "(Tensor logits, int size, int excluded, int first_location, int locations, int near)"
        " -> (Tensor, Tensor, Tensor)",
        select_greedy,
        _fake_select,
    ),
    "select_sampled": Operator(
        "(Tensor logits, Tensor draw, float temperature, int top_k, float top_p, int size,"
        " int excluded, int first_location, int locations, int near) -> (Tensor, Tensor, Tensor)",
        select_sampled,
        _fake_select,
    ),
}
#: Of models whose MLPs are quantized to 8 bits.
QUANTIZED_OPERATORS: dict[str, Operator] = {
    "residual_norm_quantized": Operator(
        "(Tensor x, Tensor delta, Tensor? post_scale, Tensor scale, float eps, ScalarType dtype)"
        " -> (Tensor, Tensor, Tensor)",
        residual_norm_quantized,
        lambda x, *others: (torch.empty_like(x), *_fake_quantized(x, others[-1])),
    ),
    "geglu_quantized": Operator(
        "(Tensor gate_up, ScalarType dtype) -> (Tensor, Tensor)",
        geglu_quantized,
        lambda gate_up, dtype: _fake_quantized(_half(gate_up), dtype),
    ),
    "int8_product": Operator(
        "(Tensor quantized, Tensor scale, Tensor weight, Tensor channel_scale, ScalarType dtype)"
        " -> Tensor",
        int8_product,
        lambda quantized, _, weight, __, dtype: quantized.new_empty(
            len(quantized), len(weight), dtype=dtype
        ),
        dtypes=(torch.int8,),
    ),
}


def _register() -> None:
    library: Any = LIBRARY
    for name, operator in (OPERATORS | QUANTIZED_OPERATORS).items():
        library.define(name + operator.schema)
        library.impl(name, operator.plain, "CompositeExplicitAutograd")
        library.impl(name, operator.fake, "Meta")
        if torch.version.cuda and find_spec("triton"):
            library.impl(name, _kernel_or_plain(name, operator), "CUDA")


def _kernel_or_plain(name: str, operator: Operator) -> Callable[..., Any]:
    """The kernel of this name, or the plain version for what it does not support."""

    def run(first: Tensor, *others: Any) -> Any:
        from pgcli.model.cuda import kernels

        has_kernel = first.dtype in operator.dtypes and (
            name not in ("attend", "rotate") or others[2].shape[-1] in KERNEL_HEADS
        )
        return (getattr(kernels, name) if has_kernel else operator.plain)(first, *others)

    return run


_register()
