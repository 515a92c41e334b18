"""The prefix-LM loss: cross-entropy of the answers' tokens, given images and prompts.

B rows · P patches · T text tokens · S all slots · D width · M answer tokens · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.training.chunks import sum_over_chunks
from pgcli.training.packing import (
    IGNORE_INDEX,
    TokenizedExample,
    collate,
    pack,
    packed_positions,
    packed_prefix_lm_mask,
    packed_sliding_mask,
)

#: What the loss is the mean over: examples, of the mean over each one's tokens, or all tokens.
LossMean = Literal["example", "token"]
CHUNK_BYTES = 2**28  # of float32 logits: 260 tokens of PaliGemma's vocabulary


class AnswerTokens(NamedTuple):
    """Rows of text after an image, padded on the right; targets without a loss are IGNORE_INDEX."""

    token_BT: Tensor
    position_BS: Tensor
    masks: AttentionMasks
    target_BT: Tensor

    @classmethod
    def of(
        cls,
        examples: Sequence[TokenizedExample],
        *,
        patches: int,
        window: int | None,
        device: torch.device,
    ) -> AnswerTokens:
        """One example in a row: image and prompt attend to each other, the answer is causal."""
        slots = max(len(one.prefix) + len(one.suffix) - 1 for one in examples)
        packed = [pack([one], slots=slots, max_examples=1)[0] for one in examples]
        row = collate(packed, slots)
        token_BT, example_BT, position_BT, is_prefix_BT, target_BT, _ = (
            tensor.to(device, non_blocking=True) for tensor in row
        )
        position_BS = packed_positions(position_BT, patches=patches)
        mask = packed_prefix_lm_mask(
            example_BT, is_prefix_BT, patches=patches, image_attends_to_prompt=True
        )
        sliding = packed_sliding_mask(mask, position_BS, is_prefix_BT, window=window)
        return cls(token_BT, position_BS, AttentionMasks(mask, sliding), target_BT)


def answer_loss(
    model: PaliGemma,
    patch_BPD: Tensor,
    tokens: AnswerTokens,
    *,
    loss_mean: LossMean,
    label_smoothing: float = 0.0,
    keep_softcap: bool = False,
) -> Tensor:
    """The sum of the rows' losses: of the mean over each row's tokens, or of all tokens.

    The loss is on the answer and its stop token. Logits are computed for these tokens only, in
    chunks, and again in the backward pass. Without `keep_softcap` they are not softcapped.
    """
    hidden_BTD = model(patch_BPD, tokens.token_BT, tokens.position_BS, tokens.masks)
    is_answer_BT = tokens.target_BT != IGNORE_INDEX
    weight_BT = is_answer_BT.float()
    if loss_mean == "example":
        weight_BT = weight_BT / weight_BT.sum(1, keepdim=True)
    hidden_MD, target_M = hidden_BTD[is_answer_BT], tokens.target_BT[is_answer_BT]
    weight_M, decoder = weight_BT[is_answer_BT], model.decoder

    def loss_of_tokens(start: int, stop: int) -> Tensor:
        part = slice(start, stop)
        if keep_softcap:
            logit_mV = decoder.logits(hidden_MD[part])
        else:
            logit_mV = decoder.lm_head(hidden_MD[part], decoder.embed_tokens.weight)
        loss_m = F.cross_entropy(
            logit_mV.float(), target_M[part], reduction="none", label_smoothing=label_smoothing
        )
        return (loss_m * weight_M[part]).sum()

    chunk = max(1, CHUNK_BYTES // (4 * decoder.config.vocab_size))
    return sum_over_chunks(loss_of_tokens, len(target_M), chunk)
