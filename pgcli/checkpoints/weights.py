"""Loads a checkpoint's weights; every name, shape and dtype must be that of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pgcli.checkpoints.names import canonical, hub_name
from pgcli.checkpoints.safetensors_files import (
    TensorInfo,
    check_dtype,
    read_headers,
    read_into,
    tensors_equal,
)
from pgcli.checkpoints.weight_files import INDEX, weight_files, weight_map
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.paligemma import PaliGemma

HEAD = "decoder.lm_head.weight"
EMBEDDING = "decoder.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class ParamSlice:
    """Rows `start` to `start + shape[0]` of a parameter, which one stored tensor fills."""

    parameter: str
    start: int
    shape: tuple[int, ...]


class _NoInit(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


@contextmanager
def skip_init() -> Iterator[None]:
    """Create modules on the meta device without initializing them.

    The first random draw on the meta device would import sympy, which takes a second.
    """
    with torch.device("meta"), _NoInit():
        yield


def load(
    folder: Path, config: PaliGemmaConfig, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> PaliGemma:
    """The model with a checkpoint's weights, in evaluation mode; never holds a second copy.

    Raises InvalidCheckpoint with the tensor's name before memory is allocated: for a missing or
    unknown tensor, another shape, an unsupported dtype, a broken file. A stored LM head that
    differs from the embedding is loaded even if the config says that they are tied.
    """
    stored = _find_tensors(folder)
    untied = replace(config, tied=config.tied and HEAD not in stored)
    _check_tensors(stored, param_slices(meta_model(untied)))
    if config.tied and HEAD in stored and tensors_equal(stored[HEAD], stored[EMBEDDING]):
        del stored[HEAD]
    else:
        config = untied
    model = meta_model(config).eval()
    _allocate(model, dtype, device)
    slices = param_slices(model)
    parameters = dict(model.named_parameters())
    in_file_order = sorted(stored, key=lambda name: (stored[name].file, stored[name].offset))
    for name in in_file_order:
        part = slices[name]
        rows = parameters[part.parameter].narrow(0, part.start, part.shape[0])
        read_into(rows, stored[name])
    return model


def meta_model(config: PaliGemmaConfig) -> PaliGemma:
    """The model on the meta device: shapes without memory."""
    with skip_init():
        return PaliGemma(config)


def _allocate(model: PaliGemma, dtype: torch.dtype, device: torch.device | str) -> None:
    # as `to_empty`, which would import sympy first
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            memory = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(memory, requires_grad=False))


def _find_tensors(folder: Path) -> dict[str, TensorInfo]:
    """The stored tensors by the model's names for them."""
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        for tensor in read_headers(file):
            name = canonical(tensor.name)
            if name in tensors:
                raise InvalidCheckpoint(
                    f"{tensor.name} is stored twice, also as {tensors[name].name}"
                )
            tensors[name] = tensor
    if (folder / INDEX).exists():
        by_name = {tensor.name: tensor for tensor in tensors.values()}
        for name, file_name in weight_map(folder / INDEX).items():
            if name not in by_name or by_name[name].file.name != file_name:
                raise InvalidCheckpoint(f"{INDEX} says that {name} is in {file_name}; it is not")
    return tensors


def param_slices(model: PaliGemma) -> dict[str, ParamSlice]:
    """The parameter, or the part of a fused parameter, that each stored tensor fills."""
    slices = {}
    for parameter, tensor in model.named_parameters():
        start = 0
        for name, rows in _stored_parts(parameter, tensor.shape[0], model.config):
            slices[name] = ParamSlice(parameter, start, (rows, *tensor.shape[1:]))
            start += rows
    return slices


def _stored_parts(parameter: str, rows: int, config: PaliGemmaConfig) -> list[tuple[str, int]]:
    """The names and row counts of the stored tensors that make up a parameter."""
    if ".gate_up_proj." in parameter:
        return [(parameter.replace("gate_up_proj", f"{x}_proj"), rows // 2) for x in ("gate", "up")]
    if ".qkv_proj." not in parameter:
        return [(parameter, rows)]
    decoder = config.decoder
    heads, size = (decoder.num_heads, decoder.num_kv_heads, decoder.num_kv_heads), decoder.head_dim
    if parameter.startswith("vision."):
        heads, size = (config.vision.num_heads,) * 3, config.vision.head_dim
    return [
        (parameter.replace("qkv_proj", f"{x}_proj"), n * size)
        for x, n in zip("qkv", heads, strict=True)
    ]


def _check_tensors(stored: dict[str, TensorInfo], slices: dict[str, ParamSlice]) -> None:
    for name, tensor in stored.items():
        if name not in slices:
            raise InvalidCheckpoint(
                f"{tensor.name} in {tensor.file.name} is not a tensor of the model"
            )
        check_dtype(tensor)
        if tensor.shape != slices[name].shape:
            raise InvalidCheckpoint(
                f"{tensor.name} has the shape {tensor.shape}; config.json implies "
                f"{slices[name].shape}"
            )
    for name in slices:
        if name not in stored:
            raise InvalidCheckpoint(f"{hub_name(name)} is missing from the checkpoint's weights")
