"""Attention of many query heads over few key/value heads, and the masks of prompts and steps.

B rows · L new slots this pass · S slots so far, or slots of a branch's prefix · N query heads ·
K key/value heads · G query heads per key/value head · H head size ·
Q = L * G queries of one key/value head, all heads of the first slot first
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from pgcli.model.compiler_errors import build_failure, is_unsupported, raise_out_of_memory
from pgcli.model.cpu.processor import has_bfloat16

SCORES = 2**23  # per chunk: 32 MiB in float32, about the size of a CPU's caches
MIN_FLEX_QUERIES = 128  # a compiled kernel is no faster for fewer
MIN_FLEX_HEAD_DIM = 16  # FlexAttention supports no smaller heads
RECOMPILE_LIMIT = 64
#: Device, dtype and head size of heads for which FlexAttention has failed to compile.
FLEX_UNSUPPORTED: set[tuple[torch.device, torch.dtype, int]] = set()


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def softcap(x: Tensor, cap: float) -> Tensor:
    """`cap * tanh(x / cap)`: values between -cap and cap, in float32 or wider."""
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
    """The output of all heads, concatenated: (B, L, N * H).

    The query heads of a group are on the query axis, so that keys and values are not copied for
    each head; with a single key/value head, queries and outputs are not copied either. The mask
    is (B, 1, 1, S) or (B, 1, L, S), and every query must attend to at least one key. Scores are
    multiplied by `scale`, by default H to the power of -1/2, and softcapped before the mask is
    applied.
    """
    rows, length, heads, size = query_BLNH.shape
    kv_heads = key_BKSH.shape[1]
    groups = heads // kv_heads
    query_BLKGH = query_BLNH.view(rows, length, kv_heads, groups, size)
    query_BKQH = query_BLKGH.transpose(1, 2).flatten(2, 3)
    mask_B1QS = mask_B1LS
    if mask_B1LS is not None and mask_B1LS.shape[2] > 1:
        mask_B1QS = mask_B1LS.repeat_interleave(groups, dim=2)
    if cap is None:
        out = F.scaled_dot_product_attention(
            query_BKQH, key_BKSH, value_BKSH, attn_mask=mask_B1QS, scale=scale
        )
    else:
        scale = size**-0.5 if scale is None else scale
        out = softcapped_attention(query_BKQH, key_BKSH, value_BKSH, mask_B1QS, scale, cap)
    return out.view(rows, kv_heads, length, groups, size).transpose(1, 2).flatten(2)


def attention_weights(
    query_BLNH: Tensor,
    key_BKSH: Tensor,
    mask_B1LS: Tensor | None = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """The weights (B, N, L, S) by which `grouped_attention` mixes values, float32; rows sum to 1.

    The attention kernels do not store weights; these are computed from the same queries and keys.
    """
    heads = (key_BKSH.shape[1], -1)
    query_BKGLH = torch.unflatten(query_BLNH.transpose(1, 2), 1, heads).float()
    scale = query_BLNH.shape[-1] ** -0.5 if scale is None else scale
    score_BKGLS = query_BKGLH @ key_BKSH[:, :, None].float().transpose(3, 4) * scale
    if cap is not None:
        score_BKGLS = softcap(score_BKGLS, cap)
    if mask_B1LS is not None:
        score_BKGLS = score_BKGLS.masked_fill(~mask_B1LS[:, :, None], -torch.inf)
    weight_BKGLS: Tensor = score_BKGLS.softmax(-1)
    return weight_BKGLS.flatten(1, 2)


def softcapped_attention(
    query_BKQH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1QS: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Attention with softcapped scores (B, K, Q, H), with FlexAttention if it is supported.

    If it does not compile, pgcli warns once per device, dtype and head size, and uses
    `chunked_attention`. Any other error is raised, including out-of-memory errors.
    """
    kind = (query_BKQH.device, query_BKQH.dtype, query_BKQH.shape[3])
    if can_compile(query_BKQH) and kind not in FLEX_UNSUPPORTED:
        try:
            return compiled_attention(query_BKQH, key_BKSH, value_BKSH, mask_B1QS, scale, cap)
        except Exception as e:  # Triton's errors are not RuntimeErrors
            raise_out_of_memory(e)
            if not is_unsupported(e):
                raise
            FLEX_UNSUPPORTED.add(kind)  # no retry: a failure takes as long as a compilation
            warn_unsupported(query_BKQH, e)
    return chunked_attention(query_BKQH, key_BKSH, value_BKSH, mask_B1QS, scale, cap)


def can_compile(query_BKQH: Tensor) -> bool:
    """Whether a compiled kernel is worth trying: on a GPU, for many queries of a usual dtype."""
    return (
        query_BKQH.is_cuda
        and query_BKQH.shape[2] >= MIN_FLEX_QUERIES
        and query_BKQH.shape[3] >= MIN_FLEX_HEAD_DIM
        and query_BKQH.dtype in (torch.bfloat16, torch.float32)
    )


def warn_unsupported(query_BKQH: Tensor, error: BaseException) -> None:
    dtype, size = str(query_BKQH.dtype).removeprefix("torch."), query_BKQH.shape[3]
    warnings.warn(
        f"FlexAttention does not compile for {dtype} heads of size {size} on {query_BKQH.device}; "
        "attention is computed in chunks, which is slower and gives the same answers "
        f"({build_failure(error)})",
        stacklevel=1,
    )


@cache
def flex() -> Callable[..., Tensor]:
    """FlexAttention for any length, compiled at the first call for each dtype and kind of mask.

    `fullgraph` raises an error where eager FlexAttention would hold all scores in memory.
    """
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    return compiled


@cache
def _as_tensors(scale: float, cap: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The numbers on the device; Python numbers would be compiled in, for this model only.

    They are cached, because the host waits while a GPU copies them.
    """
    with torch.inference_mode(False):  # training uses them too
        scale_, cap_ = torch.tensor([scale, cap], device=device)
    return scale_, cap_


def compiled_attention(
    query_BKQH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1QS: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Attention with softcapped scores (B, K, Q, H) in one fused kernel that stores no scores."""
    scale_, cap_ = _as_tensors(scale, cap, query_BKQH.device)

    def score_mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        score = cap_ * torch.tanh(score * scale_ / cap_)
        if mask_B1QS is None:
            return score
        query_index = query if mask_B1QS.shape[2] > 1 else 0
        return torch.where(mask_B1QS[row, 0, query_index, slot], score, -torch.inf)

    # one model needs more variants than the default of eight: three kinds of masks, row counts
    with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
        return flex()(query_BKQH, key_BKSH, value_BKSH, score_mod=score_mod, scale=1.0)


def chunked_attention(
    query_BKQH: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_B1QS: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Attention with softcapped scores (B, K, Q, H), computed for a chunk of queries at a time.

    The scores of all queries are never in memory together.
    """
    dtype = value_BKSH.dtype
    if value_BKSH.device.type == "cpu" and not has_bfloat16():
        query_BKQH, key_BKSH, value_BKSH = map(at_least_float32, (query_BKQH, key_BKSH, value_BKSH))
    rows, kv_heads, slots = key_BKSH.shape[:3]
    chunk = max(1, SCORES // (rows * kv_heads * slots))
    key_BKHS = key_BKSH.transpose(2, 3)
    chunks = []
    for start in range(0, query_BKQH.shape[2], chunk):
        query = query_BKQH[:, :, start : start + chunk]
        score = softcap((query @ key_BKHS) * scale, cap)
        if mask_B1QS is not None:
            mask = mask_B1QS
            if mask.shape[2] > 1:
                mask = mask[:, :, start : start + chunk]
            score = score.masked_fill(~mask, -torch.inf)
        chunks.append(score.softmax(-1).to(value_BKSH.dtype) @ value_BKSH)
    return torch.cat(chunks, dim=2).to(dtype)


class AttentionMasks(NamedTuple):
    """Which slots the new slots attend to: True for visible keys, (B, 1, 1, S) or (B, 1, L, S).

    None means all. `sliding` applies to layers with a window that limits the new slots; a prefix
    that is not causal is never limited: it attends to all of itself with any window, as in
    transformers.
    """

    full: Tensor | None
    sliding: Tensor | None


def causal_prompt_masks(
    is_real_BS: Tensor, position_BS: Tensor, image: slice, window: int | None
) -> AttentionMasks:
    """The masks of prompts whose texts are causal and whose images' slots see each other.

    Slots are in the order of the sequence, and `image` are the slots of the image. With a window a
    slot sees the last `window` positions, and of its image all later ones, as in transformers.
    """
    slots = is_real_BS.shape[1]
    sees_SS = is_real_BS.new_ones(slots, slots).tril()
    sees_SS[image, image] = True
    full_BSS = sees_SS & is_real_BS[:, None]
    if window is None or slots <= window:
        return AttentionMasks(full_BSS[:, None], full_BSS[:, None])
    near_BSS = position_BS[:, None, :] > position_BS[:, :, None] - window
    return AttentionMasks(full_BSS[:, None], (full_BSS & near_BSS)[:, None])


def step_masks(
    is_real_BS: Tensor,
    position_BS: Tensor,
    position_B1: Tensor,
    window: int | None,
    *,
    attends_to_all: bool,
) -> AttentionMasks:
    """The masks of each row's newest slot; None if it attends to every slot that is read."""
    full = None if attends_to_all else is_real_BS[:, None, None]
    if window is None or is_real_BS.shape[1] <= window:
        return AttentionMasks(full, full)
    near_BS = position_BS > position_B1 - window
    return AttentionMasks(full, (is_real_BS & near_BS)[:, None, None])


def branch_masks(
    branch_BL: Tensor,
    is_real_BS: Tensor,
    position_BS: Tensor,
    last_position_B: Tensor,
    window: int | None,
) -> tuple[Tensor, AttentionMasks]:
    """The positions (B, L) and masks of continuations, numbered by `branch_BL`, -1 for padding.

    A token attends to the real slots of its row's prefix and to the earlier tokens of its branch.
    """
    same_BLL = branch_BL[:, :, None] == branch_BL[:, None, :]
    own_BLL = same_BLL.tril()  # padding attends to padding; the result is unused
    position_BL = last_position_B[:, None] + own_BLL.sum(-1)
    before_BLS = is_real_BS[:, None].expand(-1, branch_BL.shape[1], -1)
    full_BLS = torch.cat([before_BLS, own_BLL], dim=2)
    if window is None:
        return position_BL, AttentionMasks(full_BLS[:, None], full_BLS[:, None])
    all_BS = torch.cat([position_BS, position_BL], dim=1)
    near_BLS = all_BS[:, None, :] > position_BL[:, :, None] - window
    return position_BL, AttentionMasks(full_BLS[:, None], (full_BLS & near_BLS)[:, None])
