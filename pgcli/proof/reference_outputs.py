"""transformers' outputs: one row at a time, so that no prompt is padded.

B rows · P patches · L tokens of an answer · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pgcli.proof.inputs import MAX_NEW_TOKENS, Inputs, StageOutputs
from pgcli.proof.reference import generate


@torch.inference_mode()
def reference_outputs(model: Any, inputs: Inputs, *, perturbed: bool = False) -> StageOutputs:
    """Image features, prefill logits, greedy tokens, and the logits before every token."""
    rows = [_row(model, inputs, row, perturbed) for row in range(len(inputs.ids))]
    return StageOutputs(
        features_BPD=torch.stack([features for features, _, _ in rows]),
        logits_BV=torch.stack([steps_LV[0] for _, _, steps_LV in rows]),
        tokens=tuple(tokens for _, tokens, _ in rows),
        steps=tuple(steps_LV for _, _, steps_LV in rows),
    )


def eager_outputs(model: Any, inputs: Inputs) -> StageOutputs:
    """The outputs with transformers' eager attention, whose differences are rounding noise.

    Gemma 2's decoder always uses eager attention. Its image features are perturbed by one rounding
    step instead, the least effect that another order of summation has.
    """
    is_eager_only = model.config.text_config._attn_implementation == "eager"
    model.set_attn_implementation("eager")
    return reference_outputs(model, inputs, perturbed=is_eager_only)


def _row(
    model: Any, inputs: Inputs, row: int, perturbed: bool
) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """A row's features (P, D), tokens, and the logits (L, V) before each of them."""
    weight, vocabulary, own = model.lm_head.weight, inputs.vocabulary, model.generation_config
    pixels_1CRR = inputs.pixels_BCRR[row : row + 1].to(weight.device, weight.dtype)
    projector = model.model.multi_modal_projector
    features_1PD = projector(model.model.vision_tower(pixels_1CRR).last_hidden_state)
    with _perturbed_output(projector) if perturbed else nullcontext():
        generated, start = generate(
            model,
            pixels_1CRR,
            [inputs.ids[row]],
            image_token=vocabulary.image_token,
            image_slots=features_1PD.shape[1],
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=own.eos_token_id or sorted(vocabulary.stop_tokens),
            suppress_tokens=[
                *(own.suppress_tokens or ()),
                vocabulary.image_token,
                *range(vocabulary.size, weight.shape[0]),
            ],
            output_logits=True,
            return_dict_in_generate=True,
        )
    # a beam search has a row for each beam
    logits = torch.stack([step_BV[0] for step_BV in generated.logits])[:, : vocabulary.size]
    tokens = tuple(generated.sequences[0, start:].tolist())
    return features_1PD[0].float().cpu(), tokens, logits.float().cpu()


@contextmanager
def _perturbed_output(module: torch.nn.Module) -> Iterator[None]:
    """Replace each output value by the next larger or smaller number, alternating."""

    def perturb(module: Any, inputs: Any, out: Tensor) -> Tensor:
        ends = torch.tensor([torch.inf, -torch.inf], dtype=out.dtype, device=out.device)
        directions = ends[torch.arange(out.numel(), device=out.device) % 2].view(out.shape)
        return torch.nextafter(out, directions)

    hook = module.register_forward_hook(perturb)
    try:
        yield
    finally:
        hook.remove()
