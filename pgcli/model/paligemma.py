"""PaliGemma, Gemma 3, ColPali: tower, projector, decoder; prefill, decode, branches, vectors.

B rows · C channels · R resolution · P patches · T prompt tokens ·
L new slots this pass · S slots so far · D width · V vocabulary · E size of ColPali's vectors
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.attention import AttentionMasks, at_least_float32
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.gemma import Gemma, RMSNorm
from pgcli.model.kv_cache import KVCache
from pgcli.model.siglip import SiglipVisionModel


class PooledProjector(nn.Module):
    """Gemma 3's projector: means of square cells of patches, normalized and multiplied."""

    def __init__(self, config: PaliGemmaConfig, pooled_side: int):
        super().__init__()
        vision = config.vision
        self.grid_side, self.pooled_side = vision.resolution // vision.patch_size, pooled_side
        self.norm = RMSNorm(vision.width, vision.norm_eps)
        # stored as (in, out), unlike a linear layer's
        self.weight = nn.Parameter(torch.empty(vision.width, config.decoder.width))
        nn.init.normal_(self.weight, std=vision.width**-0.5)

    def forward(self, patch_BPD: Tensor) -> Tensor:
        """The features of the image (B, pooled_side squared, decoder width), row by row."""
        side, cell = self.pooled_side, self.grid_side // self.pooled_side
        cells = torch.unflatten(patch_BPD, 1, (side, cell, side, cell))
        pooled_BPD = cells.mean((2, 4)).flatten(1, 2)
        out: Tensor = self.norm(pooled_BPD) @ self.weight
        return out


class PaliGemma(nn.Module):
    """The whole model. `encode` an image once, `prefill` it with a prompt, then `decode_step`.

    An image's keys and values depend on the prompt, because in PaliGemma image and prompt attend to
    each other fully, so only what `encode` returns is shared between prompts. Generated tokens are
    causal.
    """

    def __init__(self, config: PaliGemmaConfig):
        super().__init__()
        self.config = config
        self.vision = SiglipVisionModel(config.vision)
        self.projector: nn.Linear | PooledProjector = (
            nn.Linear(config.vision.width, config.decoder.width)
            if config.pooled_side is None
            else PooledProjector(config, config.pooled_side)
        )
        self.decoder = Gemma(config.decoder, tied=config.tied)
        if config.vector_size is not None:
            self.vectors = nn.Linear(config.decoder.width, config.vector_size)

    def encode(self, pixels_BCRR: Tensor) -> Tensor:
        """Image features (B, P, D) for the decoder, without the scaling of text embeddings."""
        patch_BPD: Tensor = self.projector(self.vision(pixels_BCRR))
        return patch_BPD

    def encode_slots(self, token_BT: Tensor, patch_BPD: Tensor | None = None) -> Tensor:
        """ColPali's vectors (B, P + T, E) of length 1: of images and prompts, or of texts alone.

        All slots attend to each other.
        """
        x_BSD = self.decoder.embed(token_BT)
        if patch_BPD is not None:
            x_BSD = torch.cat([patch_BPD, x_BSD], dim=1)
        slot_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        position_BS = (slot_S + self.config.decoder.first_position).expand(len(x_BSD), -1)
        hidden_BSD = self.decoder(x_BSD, position_BS, AttentionMasks(None, None))
        return F.normalize(at_least_float32(self.vectors(hidden_BSD)), dim=-1)

    def parts(self) -> Iterator[nn.Module]:
        """The modules that are loaded and optimized one by one; the model itself is last.

        The LM head comes first, together with the embedding; the smallest layers come last, so that
        they need the least memory beside the others.
        """
        yield self.decoder.lm_head
        yield from self.decoder.layers
        yield from self.vision.layers
        yield self

    def kv_cache(self, max_rows: int, *, fixed_shape: bool | None = None) -> KVCache:
        """An empty cache for this model, on its device and in its dtype."""
        weight = self.projector.weight
        return KVCache(self.config.decoder, max_rows=max_rows, like=weight, fixed_shape=fixed_shape)

    def prefill(
        self,
        patch_BPD: Tensor,
        token_BT: Tensor,
        is_real_BT: Tensor | None,
        cache: KVCache,
        *,
        head_H: Tensor | None = None,
        new_slots: int = 1,
    ) -> Tensor:
        """Read images and left-padded prompts into new rows of the cache; the first logits (B, V).

        The padding falls between image and prompt: this order makes the join a plain `cat`, and
        positions and mask are explicit. `head_H` are the tokens before every image.
        `is_real_BT` is False on padding, or None if all prompts are equally long; `new_slots` is
        the number of slots to allocate for each row's further tokens.
        """
        first = 0 if head_H is None else len(head_H)
        image = slice(first, first + patch_BPD.shape[1])
        x_BSD = torch.cat([patch_BPD, self.decoder.embed(token_BT)], dim=1)
        if head_H is not None:
            head_BHD = self.decoder.embed(head_H).expand(len(x_BSD), -1, -1)
            x_BSD = torch.cat([head_BHD, x_BSD], dim=1)
        is_real_BS = None
        if is_real_BT is not None:
            before = is_real_BT.new_ones(len(is_real_BT), image.stop)
            is_real_BS = torch.cat([before, is_real_BT], dim=1)
        rows, slots = x_BSD.shape[:2]
        position_BS, masks = cache.insert(rows, slots, is_real_BS, image=image, new_slots=new_slots)
        hidden_B1D = self.decoder(x_BSD, position_BS, masks, cache, last_only=True)
        return self.decoder.logits(hidden_B1D[:, 0])

    def decode_step(self, token_B: Tensor, cache: KVCache) -> Tensor:
        """Append each row's newest token; the logits (B, V) of the token that follows it.

        `token_B` may be longer than the rows in use; its other values are ignored.
        """
        cache.begin_step()
        return self.step_logits(token_B, cache)[: cache.rows]

    def step_logits(self, token_R: Tensor, cache: KVCache) -> Tensor:
        """The device's part of `decode_step`, after `cache.begin_step`; logits of padded rows.

        It reads and writes only the cache's tensors and `token_R`, so that it can be recorded.
        """
        position_B1, masks = cache.advance()
        missing = len(position_B1) - len(token_R)
        if missing > 0:
            token_R = F.pad(token_R, (0, missing))
        x_B1D = self.decoder.embed(token_R[: len(position_B1), None])
        hidden_B1D = self.decoder(x_B1D, position_B1, masks, cache)
        return self.decoder.logits(hidden_B1D[:, 0])

    def score_branches(self, token_BL: Tensor, branch_BL: Tensor, cache: KVCache) -> Tensor:
        """Read several continuations of each last inserted row; hidden states (B, L, D), no logits.

        `branch_BL` is the number of each token's continuation, -1 for padding. A token
        attends to its row's prefix and to the earlier tokens of its own branch. The cache is left
        unchanged.
        """
        position_BL, masks = cache.branch(branch_BL)
        hidden_BLD: Tensor = self.decoder(self.decoder.embed(token_BL), position_BL, masks, cache)
        return hidden_BLD

    def forward(
        self, patch_BPD: Tensor, token_BT: Tensor, position_BS: Tensor, masks: AttentionMasks
    ) -> Tensor:
        """One pass without a cache, for training; hidden states (B, T, D) of the text slots.

        If prefixes attend to themselves and answers to everything before them, it computes the
        same as `prefill` and `decode_step`.
        """
        x_BSD = torch.cat([patch_BPD, self.decoder.embed(token_BT)], dim=1)
        hidden_BSD: Tensor = self.decoder(x_BSD, position_BS, masks)
        return hidden_BSD[:, patch_BPD.shape[1] :]
