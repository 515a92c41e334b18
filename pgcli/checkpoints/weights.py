"""A checkpoint's weights -> parameters: every name, shape and dtype insisted on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pgcli.checkpoints.names import canonical, hub_name
from pgcli.checkpoints.safetensors_files import (
    DTYPES,
    TensorInfo,
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
    """Where a stored tensor belongs: rows `start` to `start + shape[0]` of a (fused) parameter."""

    parameter: str
    start: int
    shape: tuple[int, ...]


class Unfilled(TorchFunctionMode):
    """Modules made under it keep whatever is in their memory, which loading overwrites.

    On the meta device filling is more than idle: for its first random draw PyTorch imports a
    second's worth of modules, sympy among them.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def load(
    folder: Path, config: PaliGemmaConfig, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> PaliGemma:
    """The model with a checkpoint's weights, in evaluation mode, each tensor read into its place.

    Raises InvalidCheckpoint, naming the tensor, before any memory is taken: a missing or unknown
    name, another shape, a dtype that holds no weights, a broken file. Never holds a second copy.
    A head that is stored and differs from the embedding is used, whatever the config says.
    """
    stored = _stored(folder)
    untied = replace(config, tied=config.tied and HEAD not in stored)
    _insist(stored, param_slices(meta_model(untied)))
    if config.tied and HEAD in stored and tensors_equal(stored[HEAD], stored[EMBEDDING]):
        del stored[HEAD]
    else:
        config = untied
    model = meta_model(config).eval()
    _take_memory(model, dtype, device)
    home = param_slices(model)
    parameters = dict(model.named_parameters())
    in_file_order = sorted(stored, key=lambda name: (stored[name].file, stored[name].offset))
    for name in in_file_order:
        place = home[name]
        rows = parameters[place.parameter].narrow(0, place.start, place.shape[0])
        read_into(rows, stored[name])
    return model


def meta_model(config: PaliGemmaConfig) -> PaliGemma:
    """The model's shapes, without memory."""
    with torch.device("meta"), Unfilled():
        return PaliGemma(config)


def _take_memory(model: PaliGemma, dtype: torch.dtype, device: torch.device | str) -> None:
    # `to_empty` does the same, but not before it has imported sympy
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            memory = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(memory, requires_grad=False))


def _stored(folder: Path) -> dict[str, TensorInfo]:
    """Every stored tensor under this code's name for it."""
    found: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        for tensor in read_headers(file):
            name = canonical(tensor.name)
            if name in found:
                raise InvalidCheckpoint(
                    f"{tensor.name} is stored twice, also as {found[name].name}"
                )
            found[name] = tensor
    if (folder / INDEX).exists():
        by_name = {tensor.name: tensor for tensor in found.values()}
        for name, file_name in weight_map(folder / INDEX).items():
            if name not in by_name or by_name[name].file.name != file_name:
                raise InvalidCheckpoint(f"{INDEX} says that {name} is in {file_name}; it is not")
    return found


def param_slices(model: PaliGemma) -> dict[str, ParamSlice]:
    """Where each tensor of a complete checkpoint belongs; fused parameters take several."""
    found = {}
    for parameter, tensor in model.named_parameters():
        start = 0
        for name, rows in _parts(parameter, tensor.shape[0], model.config):
            found[name] = ParamSlice(parameter, start, (rows, *tensor.shape[1:]))
            start += rows
    return found


def _parts(parameter: str, rows: int, config: PaliGemmaConfig) -> list[tuple[str, int]]:
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


def _insist(stored: dict[str, TensorInfo], home: dict[str, ParamSlice]) -> None:
    for name, tensor in stored.items():
        if name not in home:
            raise InvalidCheckpoint(
                f"{tensor.name} in {tensor.file.name} has no place in the model"
            )
        if tensor.dtype not in DTYPES:
            raise InvalidCheckpoint(
                f"{tensor.name} is stored as {tensor.dtype}",
                hint=f"supported: {', '.join(DTYPES)}; quantised checkpoints are not read",
            )
        if tensor.shape != home[name].shape:
            raise InvalidCheckpoint(
                f"{tensor.name} has the shape {tensor.shape}; config.json asks for "
                f"{home[name].shape}"
            )
    for name in home:
        if name not in stored:
            raise InvalidCheckpoint(f"{hub_name(name)} is missing from the checkpoint's weights")
