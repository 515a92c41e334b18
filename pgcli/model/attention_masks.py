"""Attention masks of causal prompts, decode steps and branches, over the slots of the KV cache.

B rows · L new slots · S slots read, or slots of a branch's prefix
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
