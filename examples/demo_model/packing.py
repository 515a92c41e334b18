"""Examples about one image packed into a row of tokens: its attention mask and its loss.

B rows · P patches · T text tokens · S all slots · M answer tokens · V vocabulary · O offsets
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

SMOOTHING_STD = 1.5  # in location tokens: neighbours of the true location get part of its weight
SMOOTHING_RADIUS = 4


class TokenizedExample(NamedTuple):
    """The ids of a prompt (`bos` to newline) and of its answer (with the stop token).

    `weight` is the loss weight of the answer's first token; later tokens have a weight of 1.
    """

    prefix: Sequence[int]
    suffix: Sequence[int]
    weight: int = 1


class PackedRow(NamedTuple):
    """Examples one after another, each `[bos prompt newline answer]`; padding is 0 everywhere.

    `example` numbers them from 1; `position` counts the tokens of each from 1. `target` is the next
    token and `weight` its loss weight, which is 0 of tokens that belong to no answer.
    """

    token_BT: Tensor
    example_BT: Tensor
    position_BT: Tensor
    is_prefix_BT: Tensor
    target_BT: Tensor
    weight_BT: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> PackedRow:
        """The rows that `pack` made, padded on the right."""
        return cls(*pad_sequence([*rows], batch_first=True).unbind(-1))


def pack(examples: Sequence[TokenizedExample], *, slots: int, max_examples: int) -> Tensor:
    """The columns of a PackedRow (T, 6) of the first `max_examples` that fit into `slots`."""
    rows: list[Tensor] = []
    for prefix, suffix, weight in examples:
        length = len(prefix) + len(suffix) - 1
        if sum(map(len, rows)) + length > slots or len(rows) == max_examples:
            continue
        unscored = [0] * (len(prefix) - 1)
        columns = (
            [*prefix, *suffix[:-1]],
            [len(rows) + 1] * length,
            range(1, length + 1),
            [1] * len(prefix) + [0] * (length - len(prefix)),
            [*unscored, *suffix],
            [*unscored, weight, *[1] * (len(suffix) - 1)],
        )
        rows.append(torch.tensor(columns).T)
    return torch.cat(rows) if rows else torch.zeros(0, 6, dtype=torch.long)


def packed_mask(row: PackedRow, *, patches: int, image_attends_to_prompt: bool) -> Tensor:
    """The attention mask (B, 1, S, S) that keeps the examples of a row apart.

    Every slot attends to the image; a token attends to its own example's whole prompt and to the
    earlier tokens of its answer. In PaliGemma the image attends to the prompt as well, which is
    only possible with one example a row; with more, the image attends to itself alone, so that its
    slots are computed once a row and not once an example.
    """
    example_BT, is_prefix_BT = row.example_BT, row.is_prefix_BT.bool()
    slots = example_BT.shape[1]
    same_BTT = (example_BT[:, :, None] == example_BT[:, None, :]) & (example_BT > 0)[:, None, :]
    causal_TT = torch.ones(slots, slots, dtype=torch.bool, device=example_BT.device).tril()
    text_BTT = same_BTT & (is_prefix_BT[:, None, :] | causal_TT)
    image_BPT = (is_prefix_BT & image_attends_to_prompt)[:, None, :].expand(-1, patches, -1)
    text_keys_BST = torch.cat([image_BPT, text_BTT], dim=1)
    image_keys_BSP = text_keys_BST.new_ones(len(example_BT), patches + slots, patches)
    return torch.cat([image_keys_BSP, text_keys_BST], dim=2)[:, None]


def packed_positions(row: PackedRow, *, patches: int) -> Tensor:
    """Positions (B, S): the text of every example starts after the image."""
    image_P = torch.arange(1, patches + 1, device=row.position_BT.device)
    image_BP = image_P.expand(len(row.position_BT), -1)
    return torch.cat([image_BP, row.position_BT + patches], dim=1)


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
