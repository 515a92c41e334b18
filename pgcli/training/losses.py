"""How wrong a model's answers are: the prefix-LM loss, on answers only.

M answer tokens · V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SPREAD = 1.5  # steps of a location's grid over which a neighbour still counts as partly right
REACH = 4


def answer_loss(logits_MV: Tensor, target_M: Tensor, weight_M: Tensor, locations: range) -> Tensor:
    """The weighted mean of the answer tokens' cross-entropy.

    A location's target is a small bell around the true token: next to right is nearly right, and
    the grid's thousand places are learned from one another.
    """
    log_probability_MV = F.log_softmax(logits_MV.float(), dim=-1)
    plain_M = -log_probability_MV.gather(1, target_M[:, None])[:, 0]
    offset_R = torch.arange(-REACH, REACH + 1, device=target_M.device)
    bell_R = torch.exp(-0.5 * (offset_R / SPREAD) ** 2)
    around_MR = target_M[:, None] + offset_R
    inside_MR = (around_MR >= locations.start) & (around_MR < locations.stop)
    share_MR = bell_R * inside_MR
    share_MR = share_MR / share_MR.sum(1, keepdim=True).clamp(min=1e-9)
    around_MR = around_MR.clamp(locations.start, locations.stop - 1)
    soft_M = -(log_probability_MV.gather(1, around_MR) * share_MR).sum(1)
    is_location_M = (target_M >= locations.start) & (target_M < locations.stop)
    loss_M = torch.where(is_location_M, soft_M, plain_M)
    return (loss_M * weight_M).sum() / weight_M.sum()
