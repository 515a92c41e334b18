"""Records attention, candidates and tensor shapes of a running model, by hooks.

B rows · L new slots this pass · S slots so far · D width · N query heads · K key/value heads ·
G query heads per key/value head · H head size · V vocabulary
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from pgcli.model.attention import softcap
from pgcli.model.gemma import GemmaAttention, GemmaDecoderLayer
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import SiglipEncoderLayer

CANDIDATES = 5
VISION = "vision tower and projector"
PATCH, SLOT = "row, patch, value", "row, slot, value"  # the axes of most tensors


class TensorShape(NamedTuple):
    """A tensor on the way from pixels to tokens, and what its axes count."""

    name: str
    axes: str
    shape: tuple[int, ...]
    dtype: str


class PassRecorder:
    """While entered, records every pass of a model that answers one prompt about one image.

    The kernels of the model store no attention weights. They are computed again from the same
    queries, keys and masks, in float32, and the output that follows from them is compared with the
    module's own: `difference` is the largest difference as a share of the largest value. A prefill
    begins a new recording, as that of a run that was repeated on OOM. The number of passes is at
    least that of the tokens.
    """

    def __init__(self, model: PaliGemma, *, vocab_size: int):
        self._model, self._vocab_size = model, vocab_size
        self._handles: list[Any] = []
        #: The tensors of each stage, with how often they occur.
        self.shapes: dict[str, Counter[TensorShape]] = {VISION: Counter()}
        self._start_prefill()

    def _start_prefill(self) -> None:
        self.shapes = {VISION: self.shapes[VISION]}
        #: Of each pass, the attention of the newest slot in each layer (S,), averaged over heads.
        self.weights: list[list[Tensor]] = []
        #: Of each pass, the most probable next tokens and their probabilities.
        self.candidates: list[list[tuple[int, float]]] = []
        self.difference = 0.0

    def __enter__(self) -> Self:
        vision, decoder = self._model.vision, self._model.decoder
        see = self._observe
        see(vision.embeddings, VISION, "patches with positions", PATCH)
        for layer in cast(Iterable[SiglipEncoderLayer], vision.layers):
            see(layer.self_attn.qkv_proj, VISION, "queries, keys and values", PATCH)
            see(layer, VISION, "output of a layer", PATCH)
        see(vision.post_layernorm, VISION, "image features", PATCH)
        see(self._model.projector, VISION, "image features as wide as the decoder", PATCH)
        self._handles.append(decoder.register_forward_pre_hook(self._before_pass))
        for block in cast(Iterable[GemmaDecoderLayer], decoder.layers):
            attention = block.self_attn
            self._handles.append(attention.register_forward_pre_hook(self._before_attention))
            self._handles.append(attention.register_forward_hook(self._after_attention))
            see(block, None, "output of a layer", SLOT)
        see(decoder.norm, None, "newest slot after the last norm", SLOT)
        self._handles.append(decoder.lm_head.register_forward_hook(self._after_head))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def record(self, stage: str | None, name: str, axes: str, tensor: Tensor) -> None:
        """Count a tensor of a stage; None is the pass of the decoder in progress."""
        steps = len(self.weights) - 1
        stage = stage or (f"decode step {steps}" if steps else "prefill")
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = TensorShape(name, axes, tuple(tensor.shape), dtype)
        self.shapes.setdefault(stage, Counter())[shape] += 1

    def _observe(self, module: nn.Module, stage: str | None, name: str, axes: str) -> None:
        """Record a module's output, and the pixels that the vision tower is given."""

        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if module is self._model.vision.embeddings:
                self.record(stage, "normalized pixels", "row, channel, y, x", args[0])
            self.record(stage, name, axes, output)

        self._handles.append(module.register_forward_hook(hook))

    def _before_pass(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        x_BLD, position_BL = args[:2]
        if x_BLD.shape[1] > 1:
            self._start_prefill()
        self.weights.append([])
        if x_BLD.shape[1] > 1:
            image = self._model.config.image_tokens
            self.record(None, "image features", PATCH, x_BLD[:, :image])
            self.record(None, "embeddings of the prompt", "row, token, value", x_BLD[:, image:])
            self.record(None, "both, concatenated", SLOT, x_BLD)
        else:
            self.record(None, "embedding of the newest token", SLOT, x_BLD)
        self.record(None, "positions", "row, slot", position_BL)

    def _before_attention(self, attention: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Keep the keys and values that the cache returns."""
        x_BLD, rotary, mask, update_cache, last_only = args

        def update(key_BKLH: Tensor, value_BKLH: Tensor) -> tuple[Tensor, Tensor]:
            stored: tuple[Tensor, Tensor] = update_cache(key_BKLH, value_BKLH)
            self._stored = stored
            return stored

        return x_BLD, rotary, mask, update, last_only

    def _after_attention(
        self, attention: GemmaAttention, args: tuple[Any, ...], out_BLD: Tensor
    ) -> None:
        x_BLD, rotary, mask_B1LS, _, last_only = args
        key_BKSH, value_BKSH = self._stored
        query_BLNH, _, _ = attention.project(x_BLD, rotary, last_only)
        mask_B1S = None if mask_B1LS is None else mask_B1LS[:, :, -1]
        weight_BNS = attention_weights(
            query_BLNH[:, -1], key_BKSH, mask_B1S, scale=attention.scale, cap=attention.cap
        )
        self.record(None, "queries", "row, slot, head, value", query_BLNH)
        self.record(None, "keys in the cache", "row, head, slot, value", key_BKSH)
        self.record(None, "values in the cache", "row, head, slot, value", value_BKSH)
        self.record(None, "attention of the newest slot", "row, head, slot", weight_BNS)
        self.weights[-1].append(weight_BNS[0].mean(dim=0).cpu())
        again_BD = output_of(attention, weight_BNS, value_BKSH, out_BLD.dtype)
        out_BD = out_BLD[:, -1].float()
        difference = (again_BD.float() - out_BD).abs().max() / out_BD.abs().max()
        self.difference = max(self.difference, difference.item())

    def _after_head(self, _: nn.Module, __: tuple[Any, ...], logits_BV: Tensor) -> None:
        self.record(None, "logits of the next token", "row, token", logits_BV)
        cap = self._model.config.decoder.final_softcap
        logit_V = logits_BV[0, : self._vocab_size].float()
        logit_V = logit_V if cap is None else softcap(logit_V, cap)
        probability, token = logit_V.softmax(-1).topk(min(CANDIDATES, len(logit_V)))
        self.candidates.append(list(zip(token.tolist(), probability.tolist(), strict=True)))


def attention_weights(
    query_BNH: Tensor,
    key_BKSH: Tensor,
    mask_B1S: Tensor | None,
    *,
    scale: float,
    cap: float | None,
) -> Tensor:
    """The weights (B, N, S) of one query's softmax over all slots, in float32; rows sum to 1."""
    query_BKGH = torch.unflatten(query_BNH, 1, (key_BKSH.shape[1], -1)).float()
    score_BKGS = query_BKGH @ key_BKSH.float().transpose(2, 3) * scale
    if cap is not None:
        score_BKGS = softcap(score_BKGS, cap)
    if mask_B1S is not None:
        score_BKGS = score_BKGS.masked_fill(~mask_B1S[:, :, None], -torch.inf)
    weight_BKGS: Tensor = score_BKGS.softmax(dim=-1)
    return weight_BKGS.flatten(1, 2)


def output_of(
    attention: GemmaAttention, weight_BNS: Tensor, value_BKSH: Tensor, dtype: torch.dtype
) -> Tensor:
    """The output (B, D) of an attention module with these weights."""
    weight_BKGS = torch.unflatten(weight_BNS, 1, (value_BKSH.shape[1], -1))
    head_BNH = (weight_BKGS @ value_BKSH.float()).flatten(1, 2)
    out_B1D: Tensor = attention.o_proj(head_BNH.flatten(1)[:, None].to(dtype))
    return out_B1D[:, 0]
