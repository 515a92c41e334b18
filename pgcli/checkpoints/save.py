"""Writes models as checkpoints in transformers' layout, for `--model` and transformers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from pgcli.checkpoints import weights
from pgcli.checkpoints.adapters import open_adapter
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.families import Family, TensorNames, family_of_model
from pgcli.checkpoints.families.paligemma import PALIGEMMA, config_values
from pgcli.checkpoints.files import (
    GENERATION,
    IMAGE_PROCESSOR_FILES,
    TOKENIZER_FILES,
    weight_files,
)
from pgcli.checkpoints.safetensors_files import (
    TORCH_DTYPES,
    TensorSpec,
    check_dtype,
    read_headers,
    write_tensors,
)
from pgcli.checkpoints.weights import meta_model, param_slices
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import ImageClassifier, TwoTowers
from pgcli.stores.writing import published, write_json


def save(model: PaliGemma, folder: Path, *, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors`, with fused weights split into stored ones.

    Raises ValueError for a model whose weights are packed, quantized or have adapters.
    """
    names = dict(model.named_parameters()).keys()
    missing = dict(meta_model(model.config).named_parameters()).keys() - names
    if missing:
        raise ValueError(f"{min(missing)} is packed, quantized or adapted, and cannot be saved")
    _write_model(model, folder, PALIGEMMA, config_values(model.config), dtype)


def save_checkpoint(
    model: PaliGemma, folder: Path, *, source: Path, dtype: torch.dtype | None = None
) -> None:
    """Write the model with the tokenizer and the settings of the checkpoint `source`.

    `dtype` None is the stored dtype of `source`. Raises ValueError for a packed or quantized model,
    or one with adapters.
    """
    save(model, folder, dtype=stored_dtype(source) if dtype is None else dtype)
    copy_files(source, folder, (*TOKENIZER_FILES, *IMAGE_PROCESSOR_FILES, GENERATION))


def merge_adapter(base: Path, adapter: Path, folder: Path) -> None:
    """Write the checkpoint `base` with a PEFT adapter merged into its weights.

    Sums are computed in float32 and rounded once to the stored dtype of `base`. Raises
    InvalidCheckpoint.
    """
    merged = partial(open_adapter, adapter)
    model = weights.load_paligemma(
        base, read_config(base), dtype=stored_dtype(base), adapter=merged
    )
    save_checkpoint(model, folder, source=base)


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of a checkpoint's weights; the widest of several."""
    dtype: torch.dtype | None = None
    for file in weight_files(folder):
        for tensor in read_headers(file):
            check_dtype(tensor)
            tensor_dtype = TORCH_DTYPES[tensor.dtype]
            dtype = tensor_dtype if dtype is None else torch.promote_types(dtype, tensor_dtype)
    return dtype or torch.float32


def copy_files(source: Path, folder: Path, names: tuple[str, ...]) -> bool:
    """Copy the existing files among `names`; return whether there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    present = [name for name in names if (source / name).is_file()]
    for name in present:
        if (source / name).resolve() != (folder / name).resolve():
            shutil.copyfile(source / name, folder / name)
    return bool(present)


def save_encoder(
    model: TwoTowers | ImageClassifier, folder: Path, *, dtype: torch.dtype, pad_token: int = 1
) -> None:
    """Write `config.json` and `model.safetensors` of SigLIP, CLIP, ViT or a classifier.

    `pad_token` is the text tower's. Raises ValueError for a vision tower alone.
    """
    family = family_of_model(model.config)
    assert family.write is not None
    values = family.write(model.config)
    if isinstance(model, TwoTowers):
        values["text_config"] |= {"pad_token_id": pad_token, "bos_token_id": None}
    _write_model(model, folder, family, values, dtype)


def _write_model(
    model: nn.Module, folder: Path, family: Family, values: dict[str, Any], dtype: torch.dtype
) -> None:
    values = values | {"dtype": str(dtype).removeprefix("torch.")}
    write_files(folder, values, stored_tensors(model, family.names, dtype))


def stored_tensors(
    model: nn.Module, names: TensorNames, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The tensors of the model by their names on the Hub, fused weights split into stored ones."""
    parameters = dict(model.named_parameters())
    tensors = {}
    for name, part in param_slices(model).items():
        value = parameters[part.parameter].detach()
        rows = value.narrow(0, part.start, part.shape[0]) if part.shape else value
        ones = (1,) * (names.dimensions.get(name, 0) - rows.ndim)
        tensors[names.hub_name(name)] = (
            rows.to("cpu", dtype).reshape(ones + rows.shape).contiguous()
        )
    return tensors


def write_files(
    folder: Path,
    values: Mapping[str, Any],
    tensors: dict[str, torch.Tensor],
    *,
    names: tuple[str, str] = ("config.json", "model.safetensors"),
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the values and the tensors to the files of these names, each replaced as a whole.

    Raises OutputFailed.
    """
    config, weights = names
    ordered = dict(sorted(tensors.items()))
    specs = [TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in ordered.items()]
    with published(folder / weights, is_owner=True) as path:
        write_tensors(path, specs, ordered.values(), {"format": "pt", **metadata})
    write_json(folder / config, values, is_owner=True)
