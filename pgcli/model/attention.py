"""Attention of many query heads over few key/value heads, with or without a soft bound on scores.

B rows · L new slots this pass · S slots so far · N query heads · K key/value heads ·
Q queries of one key/value head, all slots of a group's first head, then of its second ·
H head size
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

SCORES = 2**23  # so many scores at a time, 32 MiB in float32: within the caches' reach, if barely
FEW_QUERIES = 128  # below so many a compiled kernel saves nothing
SMALLEST_HEAD = 16  # that FlexAttention takes
VARIANTS = 64
FLEX_UNSUPPORTED: set[tuple[torch.device, torch.dtype, int]] = set()


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def softcap(x: Tensor, cap: float) -> Tensor:
    """Values within -cap and cap, hardly changed while they are small; float32 or wider."""
    return cap * torch.tanh(at_least_float32(x) / cap)


def grouped_attention(
    query_BLNH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1LS: Tensor | None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """What each head read, heads joined again: (B, L, N * H).

    A group's heads are laid one after another along the query axis, so that its keys and values
    are read where they lie and never copied per head. The mask may be (B, 1, 1, S) or
    (B, 1, L, S); no query may be without a key that it sees. Scores are multiplied by `scale`,
    H to the power of -1/2 where it is None, and bounded softly by `cap` before the mask.
    """
    rows, length, heads, size = query_BLNH.shape
    kv_heads = key_BKSH.shape[1]
    groups = heads // kv_heads
    query_BKGLH = query_BLNH.view(rows, length, kv_heads, groups, size).permute(0, 2, 3, 1, 4)
    query_BKQH = query_BKGLH.flatten(2, 3)
    mask_B1QS = mask_B1LS
    if mask_B1LS is not None and mask_B1LS.shape[2] > 1:
        mask_B1QS = mask_B1LS.repeat(1, 1, groups, 1)
    if cap is None:
        out = F.scaled_dot_product_attention(
            query_BKQH, key_BKSH, value_BKSH, attn_mask=mask_B1QS, scale=scale
        )
    else:
        scale = size**-0.5 if scale is None else scale
        out = softcapped_attention(query_BKQH, key_BKSH, value_BKSH, mask_B1QS, scale, cap)
    return out.view(rows, kv_heads, groups, length, size).permute(0, 3, 1, 2, 4).flatten(2)


def softcapped_attention(
    query_BKQH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1QS: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Softly bounded attention (B, K, Q, H), as one kernel where that can be had."""
    kind = (query_BKQH.device, query_BKQH.dtype, query_BKQH.shape[3])
    if kind not in FLEX_UNSUPPORTED and can_compile(query_BKQH):
        try:
            return compiled(query_BKQH, key_BKSH, value_BKSH, mask_B1QS, scale, cap)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a variant that does not compile although the trial did
            FLEX_UNSUPPORTED.add(kind)  # to fail takes as long as to compile
    return chunked_attention(query_BKQH, key_BKSH, value_BKSH, mask_B1QS, scale, cap)


def can_compile(query_BKQH: Tensor) -> bool:
    """Whether a compiled kernel serves: on a GPU, for many queries, where it can be compiled."""
    return (
        query_BKQH.is_cuda
        and query_BKQH.shape[2] >= FEW_QUERIES
        and query_BKQH.shape[3] >= SMALLEST_HEAD
        and query_BKQH.dtype in (torch.bfloat16, torch.float32)
        and compiles(query_BKQH.device, query_BKQH.dtype, query_BKQH.shape[3])
    )


@cache
def compiles(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether FlexAttention compiles for such heads on the device: a trial tells, made once.

    The kernel is another one for other dtypes and heads: large heads want more shared memory than
    many GPUs have.
    """
    trial = torch.zeros(2, 1, 2 * FEW_QUERIES, head_dim, dtype=dtype, device=device)
    try:
        compiled(trial, trial, trial, None, 1.0, 1.0)
    except (RuntimeError, ImportError, OSError):  # no compiler, no Triton, no kernel that fits
        return False
    return True


@cache
def flex() -> Callable[..., Tensor]:
    """FlexAttention, compiled at its first call for each dtype and kind of mask, for any length.

    Where it could not be it would fall back to an attention that holds all scores; it fails
    instead.
    """
    made: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    return made


def compiled(
    query_BKQH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1QS: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Softly bounded attention (B, K, Q, H) in one fused kernel, scores never in memory at all."""
    # numbers would be part of the compiled code, and a second model's could not be
    scale_, cap_ = torch.tensor([scale, cap], device=query_BKQH.device)

    def bounded(score: Tensor, row: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        score = cap_ * torch.tanh(score * scale_ / cap_)
        if mask_B1QS is None:
            return score
        place = query if mask_B1QS.shape[2] > 1 else 0
        return torch.where(mask_B1QS[row, 0, place, slot], score, -torch.inf)

    # a model has more variants than eight: with and without masks of two kinds, one row or several
    with torch._dynamo.config.patch(recompile_limit=VARIANTS):
        return flex()(query_BKQH, key_BKSH, value_BKSH, score_mod=bounded, scale=1.0)


def chunked_attention(
    query_BKQH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1QS: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Softly bounded attention (B, K, Q, H) in plain operations, a block of queries at a time.

    The scores of all queries are never in memory together.
    """
    rows, kv_heads, _, slots = *key_BKSH.shape[:2], None, key_BKSH.shape[2]
    block = max(1, SCORES // (rows * kv_heads * slots))
    key_BKHS = key_BKSH.transpose(2, 3)
    read = []
    for start in range(0, query_BKQH.shape[2], block):
        query = query_BKQH[:, :, start : start + block]
        score = softcap((query @ key_BKHS) * scale, cap)
        if mask_B1QS is not None:
            mask = mask_B1QS
            if mask.shape[2] > 1:
                mask = mask[:, :, start : start + block]
            score = score.masked_fill(~mask, -torch.inf)
        read.append(score.softmax(-1).to(value_BKSH.dtype) @ value_BKSH)
    return torch.cat(read, dim=2)
