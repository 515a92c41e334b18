"""Both programs loaded side by side, in one copy of the weights where two would be too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.names import hub_name
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.checkpoints.weights import param_slices
from pgcli.device.select import free_bytes
from pgcli.engine.engine import Engine
from pgcli.engine.memory import parameters, row_bytes
from pgcli.errors import NoUsableDevice
from pgcli.model.paligemma import PaliGemma
from pgcli.proof import theirs

# of free memory that a second copy may take, with a batch: the machine has other work to do
SHARE_OF_FREE = 0.85


def beside(engine: Engine, folder: Path, batch: int) -> tuple[Any, bool]:
    """transformers' model where the engine's is and in its dtype; whether it shares its weights.

    It loads its own where there is ample room for them and for a batch. Raises NoUsableDevice where
    there is none for the batch alone, or where the engine's are laid out for it and nobody else.
    """
    config, weight = engine.model.config, engine.model.projector.weight
    weights = parameters(config) * weight.itemsize
    rows = batch * row_bytes(config, weight.itemsize)
    free = free_bytes(weight.device)
    if rows > free:
        raise NoUsableDevice(
            f"a batch of {batch} takes {rows / 1e9:.1f} GB, and {weight.device} has "
            f"{free / 1e9:.1f} GB free",
            hint="--batch-size with smaller numbers",
        )
    file = total_bytes(folder)
    is_of_dtype = abs(file - weights) < weights / 100  # but for its header
    # where the file is of another dtype transformers' loader holds both for a while
    needed = weights + rows + (0 if is_of_dtype else file)
    if needed <= SHARE_OF_FREE * free:
        return theirs.load(folder, weight.dtype, weight.device), False
    return shared(engine.model, folder), True


def shared(model: PaliGemma, folder: Path) -> Any:
    """transformers' model over this model's own weights: parts of fused ones, nothing copied.

    Raises NoUsableDevice where the weights are laid out in a way that only this code reads.
    """
    library = theirs.imported()
    owned = dict(model.named_parameters())
    state = {}
    for name, place in param_slices(model).items():
        whole: torch.Tensor = owned[place.parameter].detach()
        state[hub_name(name)] = whole.narrow(0, place.start, place.shape[0])
    made, info = library.PaliGemmaForConditionalGeneration.from_pretrained(
        None,
        config=library.AutoConfig.from_pretrained(folder, **theirs.SAFELY),
        state_dict=state,
        dtype=model.projector.weight.dtype,
        output_loading_info=True,
    )
    if info["missing_keys"]:  # it would draw them at random, and go on
        raise NoUsableDevice(
            "too little memory for a copy of the weights for each program",
            hint="close other programs, or measure on a larger machine",
        )
    return made.to(model.projector.weight.device).eval().requires_grad_(False)
