"""The prefix-LM loss: cross-entropy of the answers' tokens, given images and prompts.

B rows · P patches · T text tokens · S all slots · D width · M answer tokens · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.training.task import sum_over_chunks

IGNORE_INDEX = -100  # labels without a loss, as in torch's cross_entropy
CHUNK_BYTES = 2**28  # of float32 logits: 260 tokens of PaliGemma's vocabulary


class TokenizedExample(NamedTuple):
    """The ids of a prompt (`bos` to newline) and of its answer (with the stop token)."""

    prefix: Sequence[int]
    suffix: Sequence[int]


class AnswerTokens(NamedTuple):
    """Text tokens after an image, padded on the right; IGNORE_INDEX marks labels without loss."""

    token_BT: Tensor
    position_BS: Tensor
    masks: AttentionMasks
    label_BT: Tensor

    @classmethod
    def of(
        cls,
        examples: Sequence[TokenizedExample],
        *,
        patches: int,
        window: int | None,
        device: torch.device,
    ) -> AnswerTokens:
        """The rows `[prompt answer]`; an answer's tokens are the labels of their predecessors."""
        count = len(examples)
        longest = max(len(prefix) + len(suffix) - 1 for prefix, suffix in examples)
        token_BT = torch.zeros(count, longest, dtype=torch.long)
        label_BT = torch.full_like(token_BT, IGNORE_INDEX)
        for row, (prefix, suffix) in enumerate(examples):
            tokens = [*prefix, *suffix[:-1]]
            token_BT[row, : len(tokens)] = torch.tensor(tokens)
            label_BT[row, len(prefix) - 1 : len(tokens)] = torch.tensor(suffix)
        prefix_B = torch.tensor([len(prefix) for prefix, _ in examples], device=device)
        masks = prefix_lm_masks(prefix_B + patches, patches + longest, window)
        position_S = torch.arange(1, patches + longest + 1, device=device)
        position_BS = position_S.expand(count, -1)
        return cls(token_BT.to(device), position_BS, masks, label_BT.to(device))


def prefix_lm_masks(prefix_B: Tensor, slots: int, window: int | None) -> AttentionMasks:
    """The masks (B, 1, S, S) of rows whose first `prefix_B` slots are image and prompt.

    Image and prompt attend to each other, whatever the window, as in transformers. An answer token
    attends to all earlier slots, in layers with a sliding window only to the last ones. Padding
    comes last, so no real token attends to it.
    """
    slot_S = torch.arange(slots, device=prefix_B.device)
    is_prefix_BS = slot_S < prefix_B[:, None]
    mask_BSS = is_prefix_BS[:, None] | (slot_S <= slot_S[:, None])
    if window is None or window >= slots:
        return AttentionMasks(mask_BSS[:, None], mask_BSS[:, None])
    is_near_SS = slot_S > slot_S[:, None] - window
    sliding_BSS = mask_BSS & (is_near_SS | is_prefix_BS[:, :, None])
    return AttentionMasks(mask_BSS[:, None], sliding_BSS[:, None])


def answer_loss(model: PaliGemma, patch_BPD: Tensor, tokens: AnswerTokens) -> Tensor:
    """The sum of the rows' losses, each the mean over its answer and stop token.

    Computes logits of answer tokens only, in chunks, and recomputes them in the backward pass. The
    final softcap is off in training, as PaliGemma 2's authors do.
    """
    hidden_BTD = model(patch_BPD, tokens.token_BT, tokens.position_BS, tokens.masks)
    is_answer_BT = tokens.label_BT != IGNORE_INDEX
    weight_BT = is_answer_BT / is_answer_BT.sum(1, keepdim=True)
    hidden_MD, label_M = hidden_BTD[is_answer_BT], tokens.label_BT[is_answer_BT]
    weight_M, decoder = weight_BT[is_answer_BT], model.decoder

    def loss_of_tokens(start: int, stop: int) -> Tensor:
        chunk = slice(start, stop)
        logit_mV = decoder.lm_head(hidden_MD[chunk], decoder.embed_tokens.weight)
        loss_m = F.cross_entropy(logit_mV.float(), label_M[chunk], reduction="none")
        return (loss_m * weight_M[chunk]).sum()

    chunk_tokens = max(1, CHUNK_BYTES // (4 * decoder.config.vocab_size))
    return sum_over_chunks(loss_of_tokens, len(label_M), chunk_tokens)
