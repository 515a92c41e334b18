"""Merges a PEFT LoRA adapter into a model's weights.

    weight (rows, ...) + scale * lora_B (rows, r) @ lora_A (r, ...)

The sum is computed in float32 and rounded once to the weight's dtype. PEFT's merge does the same
with its defaults, which keep an adapter's matrices in float32. If the embedding and the LM head are
tied, a change to one of them leaves the other as it was, as in PEFT's unmerged model; PEFT's merge
changes both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from pgcli.checkpoints.adapter_config import AdapterConfig, read_adapter_config
from pgcli.checkpoints.adapter_file import (
    AdapterTensors,
    LoraTensors,
    check_adapter,
    read_adapter,
    weights_file,
)
from pgcli.checkpoints.safetensors_files import TensorInfo, read_tensor, tensors_equal
from pgcli.checkpoints.weights import EMBEDDING, HEAD, ParamSlice, param_slices
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma

CHUNK = 2**20  # elements: 4 MiB of float32, whatever the size of a weight


@torch.no_grad()
def merge(model: PaliGemma, folder: Path) -> None:
    """Merge the adapter in `folder` into the model's weights, in place.

    Names, shapes and settings are checked before a weight is changed. Raises InvalidCheckpoint with
    the name of the tensor or setting that is unknown, missing or of another shape; values that are
    not finite are found later and leave the model partly changed.
    """
    slices = param_slices(model)
    slices.setdefault(HEAD, ParamSlice(HEAD, 0, slices[EMBEDDING].shape))
    with _adapter_named(folder):
        config = read_adapter_config(folder)
        adapter = read_adapter(weights_file(folder), slices)
        check_adapter(adapter, config, slices)
        _merge_all(model, adapter, config)


@contextmanager
def _adapter_named(folder: Path) -> Iterator[None]:
    """Put the adapter's name before the message of an InvalidCheckpoint, and add a hint."""
    try:
        yield
    except InvalidCheckpoint as problem:
        hint = problem.hint or "save it again with PEFT's save_pretrained, or ask its author"
        raise InvalidCheckpoint(f"the adapter {folder.name}: {problem}", hint=hint) from problem


def _merge_all(model: PaliGemma, adapter: AdapterTensors, config: AdapterConfig) -> None:
    own = {name for name, tensor in adapter.whole.items() if config.saves(tensor.name)}
    if model.config.tied and HEAD in adapter.whole and HEAD not in own:
        _drop_equal_head(adapter)
    weights = _stored_weights(model)
    for name in adapter.whole.keys() - own - {HEAD}:
        weights[name].copy_(_read_finite(adapter.whole[name]))
    if model.config.tied and _unties(adapter, own, config):
        _untie(model)
        weights = _stored_weights(model)
    for name in adapter.whole.keys() & (own | {HEAD}):
        weights[name].copy_(_read_finite(adapter.whole[name]))
    for name, lora in adapter.loras.items():
        _add_lora(weights, name, lora, config)


def _drop_equal_head(adapter: AdapterTensors) -> None:
    """Ignore an LM head that is equal to the embedding: PEFT saves both of tied weights."""
    if EMBEDDING in adapter.whole and tensors_equal(adapter.whole[HEAD], adapter.whole[EMBEDDING]):
        del adapter.whole[HEAD]


def _unties(adapter: AdapterTensors, own: set[str], config: AdapterConfig) -> bool:
    """Whether the embedding and the LM head differ once the adapter is merged."""
    if HEAD in adapter.whole or HEAD in adapter.loras:
        return True
    return not config.ensure_weight_tying and (EMBEDDING in own or EMBEDDING in adapter.loras)


def _untie(model: PaliGemma) -> None:
    """Give the LM head a copy of the embedding's weight."""
    weight = model.decoder.embed_tokens.weight
    model.decoder.lm_head.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    model.config = replace(model.config, tied=False)


def _stored_weights(model: PaliGemma) -> dict[str, Tensor]:
    """The weight of each stored tensor: a parameter, or its rows of a fused parameter."""
    parameters = dict(model.named_parameters())
    return {
        name: parameters[part.parameter].narrow(0, part.start, part.shape[0])
        for name, part in param_slices(model).items()
    }


def _read_finite(tensor: TensorInfo) -> Tensor:
    values = read_tensor(tensor)
    if not _max_abs(values).isfinite():
        raise InvalidCheckpoint(f"{tensor.name} has values that are not finite")
    return values


def _max_abs(values: Tensor) -> Tensor:
    """The largest magnitude, or NaN if there is one; 30 times as fast as `isfinite().all()`."""
    low, high = values.aminmax()
    return torch.maximum(-low, high)


def _add_lora(
    weights: dict[str, Tensor], name: str, lora: LoraTensors, config: AdapterConfig
) -> None:
    weight = weights[name].flatten(1)
    wide = torch.promote_types(weight.dtype, torch.float32)
    parts = {
        part: _read_finite(tensor).to(weight.device, wide) for part, tensor in lora.parts.items()
    }
    if "lora_embedding_A" in parts:
        up, down = parts["lora_embedding_A"].T, parts["lora_embedding_B"].T
    else:
        up, down = parts["lora_B"].flatten(1), parts["lora_A"].flatten(1)
    scale, magnitude = config.scale_of(lora.module), parts.get("lora_magnitude_vector")
    if not merge_product(weight, up, down, scale, magnitude):
        raise InvalidCheckpoint(f"{lora.module}: the merged weight is not finite")
    if "lora_B.bias" in parts:
        weights[name.removesuffix("weight") + "bias"].add_(parts["lora_B.bias"], alpha=scale)


def merge_product(
    weight: Tensor, up: Tensor, down: Tensor, scale: float, magnitude: Tensor | None = None
) -> bool:
    """Add `scale * up @ down` to a matrix in place; return whether the sums are finite.

    With DoRA's `magnitude` the rows of the sum are scaled to these lengths.
    """
    largest = torch.zeros((), dtype=up.dtype, device=weight.device)
    for chunk in _chunks(weight):
        merged = torch.addmm(weight[chunk].to(up.dtype), up[chunk], down, alpha=scale)
        if magnitude is not None:
            merged *= (magnitude.flatten()[chunk] / merged.norm(dim=1))[:, None]
        weight[chunk] = merged
        largest = torch.maximum(largest, _max_abs(merged))
    return bool(largest <= torch.finfo(weight.dtype).max)


def _chunks(weight: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK // weight.shape[1])
    for start in range(0, weight.shape[0], step):
        yield slice(start, start + step)
