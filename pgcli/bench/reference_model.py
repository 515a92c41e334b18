"""Loads transformers' model next to the engine's, sharing its weights if memory is short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.names import PALIGEMMA
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.checkpoints.weights import param_slices
from pgcli.device.select import free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import batch_bytes, parameters
from pgcli.errors import NoUsableDevice
from pgcli.model.paligemma import PaliGemma
from pgcli.proof import reference

SHARE_OF_FREE = 0.85  # of free memory, for a second copy of the weights and a batch


def load_or_share(engine: InferenceEngine, folder: Path, batch: int) -> tuple[Any, bool]:
    """transformers' model on the engine's device in its dtype, and whether it shares its weights.

    It has its own weights if there is enough memory for them and a batch. Raises NoUsableDevice if
    there is too little for a batch, or if the engine's packed weights cannot be shared.
    """
    config, weight = engine.model.config, engine.model.projector.weight
    weights = parameters(config) * weight.itemsize
    rows = batch_bytes(config, weight.itemsize, batch, device=weight.device.type)
    free = free_bytes(weight.device)
    if rows > free:
        raise NoUsableDevice(
            f"a batch of {batch} takes {rows / 1e9:.1f} GB, and {weight.device} has "
            f"{free / 1e9:.1f} GB free",
            hint="--batch-size with smaller numbers",
        )
    file = total_bytes(folder)
    is_of_dtype = abs(file - weights) < weights / 100  # but for its header
    # for files of another dtype, transformers' loader temporarily holds both
    needed = weights + rows + (0 if is_of_dtype else file)
    if needed <= SHARE_OF_FREE * free:
        return reference.load_reference(folder, weight.dtype, weight.device), False
    return share_weights(engine.model, folder), True


def share_weights(model: PaliGemma, folder: Path) -> Any:
    """transformers' model with views of this model's weights, without a copy.

    Raises NoUsableDevice if the weights are packed, which transformers cannot read.
    """
    library = reference.import_transformers()
    owned = dict(model.named_parameters())
    state = {}
    for name, part in param_slices(model).items():
        whole: torch.Tensor = owned[part.parameter].detach()
        state[PALIGEMMA.hub_name(name)] = whole.narrow(0, part.start, part.shape[0])
    made, info = library.PaliGemmaForConditionalGeneration.from_pretrained(
        None,
        config=library.AutoConfig.from_pretrained(folder, **reference.SAFE_OPTIONS),
        state_dict=state,
        dtype=model.projector.weight.dtype,
        output_loading_info=True,
    )
    if info["missing_keys"]:  # transformers initializes them randomly
        raise NoUsableDevice(
            "too little memory for a copy of the weights for each program",
            hint="close other programs, or measure on a larger machine",
        )
    return made.to(model.projector.weight.device).eval().requires_grad_(False)
