"""Prefix-LM masks made from their definition, for passes without a cache.

B rows · S slots
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgcli.model.attention_masks import AttentionMasks


def make_masks(
    is_real_BS: Tensor, is_prefix_BS: Tensor, position_BS: Tensor, window: int | None
) -> AttentionMasks:
    """The masks of layers without and with a sliding window, which applies to answers only."""
    full = prefix_lm_mask(is_real_BS, is_prefix_BS)
    if window is None:
        return AttentionMasks(full, full)
    within_BSS = position_BS[:, None, :] > position_BS[:, :, None] - window
    return AttentionMasks(full, full & (within_BSS | is_prefix_BS[:, :, None])[:, None])


def prefix_lm_mask(is_real_BS: Tensor, is_prefix_BS: Tensor) -> Tensor:
    """Which keys each query attends to, (B, 1, S, S): the prefix to itself, the answer to the past.

    For a prefix of two slots, one of padding and an answer of two (query by row, key by column):

        1 1 0 0 0
        1 1 0 0 0
        1 1 0 0 0
        1 1 0 1 0
        1 1 0 1 1
    """
    slots = is_real_BS.shape[1]
    earlier_SS = torch.ones(slots, slots, dtype=torch.bool, device=is_real_BS.device).tril()
    allowed_BSS = (is_prefix_BS[:, None, :] | earlier_SS) & is_real_BS[:, None, :]
    return allowed_BSS[:, None]
