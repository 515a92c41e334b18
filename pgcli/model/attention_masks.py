"""Attention masks of decode steps and branches, over the slots of the KV cache.

B rows · L new slots · S slots read, or slots of a branch's prefix
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionMasks(NamedTuple):
    """Which slots the new slots attend to: True for visible keys, (B, 1, 1, S) or (B, 1, L, S).

    None means all. `sliding` applies to layers with a window that limits the new slots; the prefix
    is never limited: it attends to all of itself with any window, as in transformers.
    """

    full: Tensor | None
    sliding: Tensor | None


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
