"""PaliGemma: the eye, one linear projector and the decoder, as prefill and step.

B rows · A rows of a step, made up · C channels · R resolution · P patches · T prompt tokens ·
L new slots this pass · S slots so far · D width · V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.config import PaliGemmaConfig
from pgcli.model.gemma import Gemma, Remembering
from pgcli.model.kv_cache import AttentionMasks, Cache
from pgcli.model.places import Places
from pgcli.model.siglip import SiglipVisionModel


class PaliGemma(nn.Module):
    """The whole model. `encode` a picture once, `prefill` it with a prompt, then `step`.

    Image and prompt see each other whole, so an image's keys and values depend on the prompt and
    only what `encode` returns can be shared between prompts. Generated tokens are causal.
    """

    def __init__(self, config: PaliGemmaConfig):
        super().__init__()
        self.config = config
        self.vision = SiglipVisionModel(config.vision)
        self.projector = nn.Linear(config.vision.width, config.decoder.width)
        self.decoder = Gemma(config.decoder, tied=config.tied)

    def encode(self, pixels_BCRR: Tensor) -> Tensor:
        """Pictures as the decoder reads them: (B, P, D), not scaled as text embeddings are."""
        patch_BPD: Tensor = self.projector(self.vision(pixels_BCRR))
        return patch_BPD

    def cache(self, *, rows: int, slots: int) -> Cache:
        """An empty cache that fits this model, where the model is and in its dtype."""
        decoder, weight = self.config.decoder, self.projector.weight
        return Cache(
            rows=rows,
            slots=slots,
            depth=decoder.depth,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            dtype=weight.dtype,
            device=weight.device,
            window=decoder.sliding_window,
        )

    def places(self, rows: int) -> Places:
        """Empty places for rows that go on together."""
        return Places(rows, self.config.decoder, like=self.projector.weight)

    def prefill(
        self, patch_BPD: Tensor, token_BT: Tensor, is_real_BT: Tensor | None, cache: Cache
    ) -> Tensor:
        """Read pictures and left-padded prompts into an empty cache; the first logits (B, V).

        The image goes first and the padding falls between image and prompt: slot order is free
        because positions and mask are explicit, and this order makes the join a plain `cat`.
        `is_real_BT` is False on padding, or None where all prompts are equally long.
        """
        x_BSD = torch.cat([patch_BPD, self.decoder.embed(token_BT)], dim=1)
        is_real_BS = None
        if is_real_BT is not None:
            image = is_real_BT.new_ones(patch_BPD.shape[:2])
            is_real_BS = torch.cat([image, is_real_BT], dim=1)
        position_BS, masks = cache.claim(is_real_BS, x_BSD.shape[1])
        hidden_B1D = self.decoder(x_BSD, position_BS, masks, cache, last_only=True)
        return self.decoder.logits(hidden_B1D[:, 0])

    def step(self, token_B: Tensor, remembered: Remembering) -> Tensor:
        """Append each row's newest token; the logits (B, V) of what follows it."""
        position_A1, masks = remembered.claim_next()
        rows = len(token_B)
        token_A = F.pad(token_B, (0, len(position_A1) - rows))  # of places that nobody has
        x_A1D = self.decoder.embed(token_A[:, None])
        hidden_A1D = self.decoder(x_A1D, position_A1, masks, remembered)
        return self.decoder.logits(hidden_A1D[:, 0])[:rows]

    def continuations(self, token_BL: Tensor, branch_BL: Tensor, cache: Cache) -> Tensor:
        """Read several continuations of each row in one pass; hidden states (B, L, D), no logits.

        `branch_BL` numbers the continuation that a token belongs to, -1 for padding. A token sees
        what was read before and the earlier tokens of its own branch. The cache is left as it was.
        """
        before = cache.length
        position_BL, masks = cache.fork(branch_BL)
        hidden_BLD: Tensor = self.decoder(self.decoder.embed(token_BL), position_BL, masks, cache)
        cache.rewind(before)
        return hidden_BLD

    def forward(
        self, patch_BPD: Tensor, token_BT: Tensor, position_BS: Tensor, masks: AttentionMasks
    ) -> Tensor:
        """One pass without a cache, for training; hidden states (B, T, D) of the text slots.

        `make_masks` makes the masks under which this is the same function as `prefill` and
        `step`.
        """
        x_BSD = torch.cat([patch_BPD, self.decoder.embed(token_BT)], dim=1)
        hidden_BSD: Tensor = self.decoder(x_BSD, position_BS, masks)
        return hidden_BSD[:, patch_BPD.shape[1] :]


def make_masks(
    is_real_BS: Tensor, is_prefix_BS: Tensor, position_BS: Tensor, window: int | None
) -> AttentionMasks:
    """What each slot sees in layers without and with a window, which binds the answer only."""
    whole = prefix_lm_mask(is_real_BS, is_prefix_BS)
    if window is None:
        return AttentionMasks(whole, whole)
    within_BSS = position_BS[:, None, :] > position_BS[:, :, None] - window
    return AttentionMasks(whole, whole & (within_BSS | is_prefix_BS[:, :, None])[:, None])


def prefix_lm_mask(is_real_BS: Tensor, is_prefix_BS: Tensor) -> Tensor:
    """Who may look at whom, (B, 1, S, S): the prefix sees itself whole, the answer the past.

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
