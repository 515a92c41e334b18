"""The loss of the built-in model: cross-entropy of answer tokens, smoothed over locations.

M answer tokens · V vocabulary · O offsets around a location token
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SMOOTHING_STD = 1.5  # in location tokens: neighbours of the true location get part of its weight
SMOOTHING_RADIUS = 4


def smoothed_loss(
    logits_MV: Tensor, target_M: Tensor, weight_M: Tensor, locations: range
) -> Tensor:
    """The weighted mean cross-entropy of the answer tokens.

    Targets that are location tokens are smoothed with a Gaussian over the neighbouring locations,
    since a box that is off by one location is almost right.
    """
    log_probability_MV = F.log_softmax(logits_MV.float(), dim=-1)
    hard_M = -log_probability_MV.gather(1, target_M[:, None])[:, 0]
    offset_O = torch.arange(-SMOOTHING_RADIUS, SMOOTHING_RADIUS + 1, device=target_M.device)
    gaussian_O = torch.exp(-0.5 * (offset_O / SMOOTHING_STD) ** 2)
    neighbour_MO = target_M[:, None] + offset_O
    is_inside_MO = (neighbour_MO >= locations.start) & (neighbour_MO < locations.stop)
    share_MO = gaussian_O * is_inside_MO
    share_MO = share_MO / share_MO.sum(1, keepdim=True).clamp(min=1e-9)
    neighbour_MO = neighbour_MO.clamp(locations.start, locations.stop - 1)
    smooth_M = -(log_probability_MV.gather(1, neighbour_MO) * share_MO).sum(1)
    is_location_M = (target_M >= locations.start) & (target_M < locations.stop)
    loss_M = torch.where(is_location_M, smooth_M, hard_M)
    return (loss_M * weight_M).sum() / weight_M.sum()
