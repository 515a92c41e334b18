"""A PEFT LoRA folder -> merged into a model's own weights, as PEFT runs it.

    weight (rows, ...) + scale * up (rows, r) @ down (r, ...)

The sum is made in float32 and rounded once to the weight's dtype. That is what PEFT's merge does
too where it loads with its defaults, which hold an adapter's matrices in float32 whatever the
model's dtype. Unlike PEFT's merge, but like PEFT's unmerged model, a change to the embedding or
to the head leaves the other one as it was, where both began as one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pgcli.checkpoints.adapter_config import AdapterConfig, read
from pgcli.checkpoints.adapter_file import (
    AdapterTensors,
    LoraTensors,
    insist,
    open_tensors,
    sort,
    weights_file,
)
from pgcli.checkpoints.weights import EMBEDDING, HEAD, ParamSlice, param_slices
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma

CHUNK = 2**20  # elements: 4 MiB of float32, whatever the size of a weight


@torch.no_grad()
def merge(model: PaliGemma, folder: Path) -> None:
    """Put the adapter in `folder` into the model's weights, wherever and of whatever dtype.

    Everything but the numbers is checked before the first is changed. Raises InvalidCheckpoint,
    naming the tensor or the setting: unknown, missing, of another shape, or not finite, which
    leaves the model half changed.
    """
    home = param_slices(model)
    home.setdefault(HEAD, ParamSlice(HEAD, 0, home[EMBEDDING].shape))
    with _named(folder):
        config, file = read(folder), weights_file(folder)
        with open_tensors(file) as opened:
            stored = sort(opened, home)
            insist(stored, config, home)
            _merge_all(model, stored, config, opened)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Have what is wrong with the adapter say which one it is, and what may help."""
    try:
        yield
    except InvalidCheckpoint as problem:
        hint = problem.hint or "write it again with PEFT's save_pretrained, or ask who made it"
        raise InvalidCheckpoint(f"the adapter {folder.name}: {problem}", hint=hint) from problem


def _merge_all(
    model: PaliGemma, stored: AdapterTensors, config: AdapterConfig, opened: Any
) -> None:
    own = {name for name, tensor in stored.whole.items() if config.saves(tensor)}
    if model.config.tied and HEAD in stored.whole and HEAD not in own:
        _drop_equal_head(stored, opened)
    weights = _weights(model)
    for name in stored.whole.keys() - own - {HEAD}:
        weights[name].copy_(_finite(opened, stored.whole[name]))
    if model.config.tied and _parts_ends(stored, own, config):
        _untie(model)
        weights = _weights(model)
    for name in stored.whole.keys() & (own | {HEAD}):
        weights[name].copy_(_finite(opened, stored.whole[name]))
    for name, lora in stored.loras.items():
        _add(weights, name, lora, config, opened)


def _drop_equal_head(stored: AdapterTensors, opened: Any) -> None:
    """Forget a head that is stored beside the embedding only because PEFT saves both."""
    if EMBEDDING in stored.whole:
        head, embedding = (opened.get_tensor(stored.whole[name]) for name in (HEAD, EMBEDDING))
        if torch.equal(head, embedding):
            del stored.whole[HEAD]


def _parts_ends(stored: AdapterTensors, own: set[str], config: AdapterConfig) -> bool:
    """Whether the adapter leaves the embedding and the head no longer the same matrix."""
    if HEAD in stored.whole or HEAD in stored.loras:
        return True
    return not config.ties and (EMBEDDING in own or EMBEDDING in stored.loras)


def _untie(model: PaliGemma) -> None:
    """Give the LM head a copy of the embedding's weight."""
    weight = model.decoder.embed_tokens.weight
    model.decoder.lm_head.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    model.config = replace(model.config, tied=False)


def _weights(model: PaliGemma) -> dict[str, Tensor]:
    """Every stored tensor's own rows of the parameter that it is part of."""
    parameters = dict(model.named_parameters())
    return {
        name: parameters[place.parameter].narrow(0, place.start, place.shape[0])
        for name, place in param_slices(model).items()
    }


def _finite(opened: Any, tensor: str) -> Tensor:
    values: Tensor = opened.get_tensor(tensor)
    if not _largest(values).isfinite():
        raise InvalidCheckpoint(f"{tensor} has values that are not finite")
    return values


def _largest(values: Tensor) -> Tensor:
    """The largest magnitude, NaN where any is: thirty times as fast as asking each value."""
    low, high = values.aminmax()
    return torch.maximum(-low, high)


def _add(
    weights: dict[str, Tensor], name: str, lora: LoraTensors, config: AdapterConfig, opened: Any
) -> None:
    weight = weights[name].flatten(1)
    wide = torch.promote_types(weight.dtype, torch.float32)
    parts = {
        part: _finite(opened, tensor).to(weight.device, wide) for part, tensor in lora.parts.items()
    }
    if "lora_embedding_A" in parts:
        up, down = parts["lora_embedding_A"].T, parts["lora_embedding_B"].T
    else:
        up, down = parts["lora_B"].flatten(1), parts["lora_A"].flatten(1)
    scale, magnitude = config.scale_of(lora.module), parts.get("lora_magnitude_vector")
    largest = torch.zeros((), dtype=wide, device=weight.device)
    for chunk in _chunks(weight):
        merged = torch.addmm(weight[chunk].to(wide), up[chunk], down, alpha=scale)
        if magnitude is not None:
            merged *= (magnitude.flatten()[chunk] / merged.norm(dim=1))[:, None]
        weight[chunk] = merged
        largest = torch.maximum(largest, _largest(merged))
    if not largest <= torch.finfo(weight.dtype).max:
        raise InvalidCheckpoint(f"{lora.module}: with the adapter it is no longer finite")
    if "lora_B.bias" in parts:
        weights[name.removesuffix("weight") + "bias"].add_(parts["lora_B.bias"], alpha=scale)


def _chunks(weight: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK // weight.shape[1])
    for start in range(0, weight.shape[0], step):
        yield slice(start, start + step)
