"""Packs examples about one image into a row of tokens, and makes the row's attention mask.

B rows · P patches · T text tokens · S all slots
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

IGNORE_INDEX = -100  # targets without a loss, as in torch's cross_entropy


Values = TypeVar("Values")


class TokenizedExample(NamedTuple):
    """The ids of a prompt (`bos` to newline) and of its answer (with the stop token).

    `weight` is the loss weight of the answer's first token; later tokens have a weight of 1.
    """

    prefix: Sequence[int]
    suffix: Sequence[int]
    weight: float = 1.0


class PackedRow(NamedTuple, Generic[Values]):
    """Examples one after another, each `[bos prompt newline answer]`.

    `example` numbers them from 1, 0 on padding; `position` counts the tokens of each from 1.
    `target` is the next token if it belongs to an answer, else IGNORE_INDEX; `weight` is its loss
    weight.
    """

    token_T: Values
    example_T: Values
    position_T: Values
    is_prefix_T: Values
    target_T: Values
    weight_T: Values


def pack(
    examples: Sequence[TokenizedExample], *, slots: int, max_examples: int
) -> tuple[PackedRow[list[float]], tuple[int, ...]]:
    """Pack the first `max_examples` examples that fit into `slots` tokens; return their indices."""
    packed: list[int] = []
    row: PackedRow[list[float]] = PackedRow([], [], [], [], [], [])
    for index, (prefix, suffix, weight) in enumerate(examples):
        length = len(prefix) + len(suffix) - 1
        if len(row.token_T) + length > slots or len(packed) == max_examples:
            continue
        packed.append(index)
        unscored = len(prefix) - 1
        row.token_T.extend([*prefix, *suffix[:-1]])
        row.example_T.extend([len(packed)] * length)
        row.position_T.extend(range(1, length + 1))
        row.is_prefix_T.extend([1] * len(prefix) + [0] * (length - len(prefix)))
        row.target_T.extend([*[IGNORE_INDEX] * unscored, *suffix])
        row.weight_T.extend([*[0.0] * unscored, weight, *[1.0] * (len(suffix) - 1)])
    return row, tuple(packed)


def collate(rows: Sequence[PackedRow[list[float]]], slots: int) -> PackedRow[Tensor]:
    """Stack rows of any lengths as tensors (B, T), padded on the right."""

    def column(lists: Sequence[list[float]], dtype: torch.dtype, fill: int = 0) -> Tensor:
        padded = [values + [fill] * (slots - len(values)) for values in lists]
        return torch.tensor(padded, dtype=dtype)

    token, example, position, is_prefix, target, weight = zip(*rows, strict=True)
    return PackedRow(
        token_T=column(token, torch.long),
        example_T=column(example, torch.long),
        position_T=column(position, torch.long),
        is_prefix_T=column(is_prefix, torch.bool),
        target_T=column(target, torch.long, IGNORE_INDEX),
        weight_T=column(weight, torch.float32),
    )


def packed_prefix_lm_mask(
    example_BT: Tensor, is_prefix_BT: Tensor, *, patches: int, image_attends_to_prompt: bool
) -> Tensor:
    """The attention mask (B, 1, S, S) that keeps the examples of a row apart.

    Every slot attends to the image; a token attends to its own example's whole prompt and to the
    earlier tokens of its answer. In PaliGemma the image attends to the prompt as well, which is
    only possible with one example a row; with more, the image attends to itself alone, so that its
    slots are computed once a row and not once an example.
    """
    slots = example_BT.shape[1]
    same_BTT = (example_BT[:, :, None] == example_BT[:, None, :]) & (example_BT > 0)[:, None, :]
    causal_TT = torch.ones(slots, slots, dtype=torch.bool, device=example_BT.device).tril()
    text_BTT = same_BTT & (is_prefix_BT[:, None, :] | causal_TT)
    image_BPT = (is_prefix_BT & image_attends_to_prompt)[:, None, :].expand(-1, patches, -1)
    text_keys_BST = torch.cat([image_BPT, text_BTT], dim=1)
    image_keys_BSP = text_keys_BST.new_ones(len(example_BT), patches + slots, patches)
    return torch.cat([image_keys_BSP, text_keys_BST], dim=2)[:, None]


def packed_positions(position_BT: Tensor, *, patches: int) -> Tensor:
    """Positions (B, S): the text of every example starts after the image."""
    image_P = torch.arange(1, patches + 1, device=position_BT.device)
    return torch.cat([image_P.expand(len(position_BT), -1), position_BT + patches], dim=1)
