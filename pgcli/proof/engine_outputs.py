"""This code's outputs: all rows in one batch, with shorter prompts padded.

B rows · C channels · R resolution · P patches · T prompt tokens · D width · V vocabulary
"""

from __future__ import annotations

from pathlib import Path

import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine.model_runner import generate
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import left_pad
from pgcli.model.optimize import optimize_for_device
from pgcli.model.paligemma import PaliGemma
from pgcli.proof.inputs import MAX_NEW_TOKENS, Inputs, StageOutputs


def load_and_run(
    folder: Path, inputs: Inputs, dtype: torch.dtype, device: torch.device
) -> StageOutputs:
    """Load the checkpoint, compute its outputs, and free the model."""
    model = weights.load(folder, read_config(folder), dtype=dtype, device=device)
    optimize_for_device(model)
    return engine_outputs(model, inputs)


@torch.inference_mode()
def engine_outputs(model: PaliGemma, inputs: Inputs) -> StageOutputs:
    """Image features, prefill logits within the vocabulary, and greedy tokens."""
    weight = model.projector.weight
    patch_BPD = model.encode(inputs.pixels_BCRR.to(weight.device, weight.dtype))
    token_BT, is_real_BT = left_pad(inputs.ids)
    if is_real_BT is not None:
        is_real_BT = is_real_BT.to(weight.device)
    cache = model.kv_cache(len(inputs.ids))
    logits_BV = model.prefill(patch_BPD, token_BT.to(weight.device), is_real_BT, cache)
    sequences = [
        Sequence(row, prompt, ids, MAX_NEW_TOKENS)
        for row, (prompt, ids) in enumerate(zip(inputs.prompts, inputs.ids, strict=True))
    ]
    rows = generate(model, patch_BPD, sequences, inputs.vocabulary)
    return StageOutputs(
        features_BPD=patch_BPD.float().cpu(),
        logits_BV=logits_BV[:, : inputs.vocabulary.size].float().cpu(),
        tokens=tuple(tuple(row.tokens) for row in rows),
    )
