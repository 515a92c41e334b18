"""Reads the header of a PEFT adapter and checks every tensor's name and shape."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from pgcli.checkpoints.adapter_config import AdapterConfig
from pgcli.checkpoints.names import PALIGEMMA
from pgcli.checkpoints.safetensors_files import TensorInfo, check_dtype, read_headers
from pgcli.checkpoints.weights import EMBEDDING, ParamSlice
from pgcli.errors import InvalidCheckpoint

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
LORA_NAME = re.compile(
    r"(?P<module>.+?)\.(?P<part>lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)"
    r"(\.(?!weight$|bias$)[^.]+)?(?P<bias>\.bias)?(\.weight)?"
)
POSITIONS = "vision.embeddings.position_embedding.weight"
Slices = dict[str, ParamSlice]


@dataclass(slots=True)
class LoraTensors:
    """The stored tensors of one adapted weight, by part; `module` is its name in the file."""

    module: str
    parts: dict[str, TensorInfo] = field(default_factory=dict)


@dataclass(slots=True)
class AdapterTensors:
    """An adapter's tensors by the model's names: LoRA matrices, and weights stored whole."""

    loras: dict[str, LoraTensors] = field(default_factory=dict)
    whole: dict[str, TensorInfo] = field(default_factory=dict)


def weights_file(folder: Path) -> Path:
    """The adapter's safetensors file; InvalidCheckpoint if there is none, or only a pickle."""
    file = folder / WEIGHTS
    if file.exists():
        return file
    pickle = folder / "adapter_model.bin"
    if pickle.is_file():
        raise InvalidCheckpoint(
            f"{pickle} is a pickle, which can run code",
            hint="if you trust it, load it with PEFT and save it again: save_pretrained "
            f"writes {WEIGHTS}",
        )
    raise InvalidCheckpoint(f"{folder} has no {WEIGHTS}", hint="download the adapter again")


def read_adapter(file: Path, slices: Slices) -> AdapterTensors:
    """The tensors in the header of an adapter's file, assigned to the weights that they change.

    Raises InvalidCheckpoint for an unknown name, a tensor stored twice, and an unsupported dtype.
    """
    adapter = AdapterTensors()
    for tensor in sorted(read_headers(file), key=lambda tensor: tensor.name):
        check_dtype(tensor)
        lora = LORA_NAME.fullmatch(tensor.name.removeprefix(PREFIX))
        if lora:
            weight = _model_name(lora["module"] + ".weight", tensor.name, slices)
            parts = adapter.loras.setdefault(weight, LoraTensors(lora["module"])).parts
            part = lora["part"] + (lora["bias"] or "")
        else:
            part = _whole_weight(tensor.name, slices)
            parts = adapter.whole
        if part in parts:
            raise InvalidCheckpoint(f"{tensor.name} is stored twice, also as {parts[part].name}")
        parts[part] = tensor
    if not adapter.loras:
        raise InvalidCheckpoint(f"{WEIGHTS} has no LoRA matrices")
    return adapter


def _whole_weight(tensor: str, slices: Slices) -> str:
    """The model's name of a weight that is stored whole, not as LoRA matrices."""
    plain = tensor.removeprefix(PREFIX).replace(".base_layer.", ".")
    if ".modules_to_save." not in plain:
        return _model_name(plain, tensor, slices)
    module, rest = plain.split(".modules_to_save.", 1)
    without_adapter_name = f"{module}.{rest}"
    if PALIGEMMA.canonical(without_adapter_name) in slices:
        return PALIGEMMA.canonical(without_adapter_name)
    return _model_name(f"{module}.{rest.partition('.')[2]}", tensor, slices)


def _model_name(plain: str, tensor: str, slices: Slices) -> str:
    name = PALIGEMMA.canonical(plain)
    if name not in slices:
        raise InvalidCheckpoint(f"{tensor} in {WEIGHTS} is not a tensor of the model")
    return name


def check_adapter(adapter: AdapterTensors, config: AdapterConfig, slices: Slices) -> None:
    """Raise InvalidCheckpoint for a matrix without its pair, a wrong shape, a missing layer."""
    for name, tensor in adapter.whole.items():
        _check_shape(tensor, slices[name].shape, config)
    for name, lora in adapter.loras.items():
        shapes = _expected_shapes(name, lora, config, slices)
        for part in shapes.keys() - lora.parts.keys():
            raise InvalidCheckpoint(f"{lora.module} has no {part} in {WEIGHTS}")
        for part, tensor in lora.parts.items():
            if part not in shapes:
                raise InvalidCheckpoint(f"{tensor.name} contradicts the adapter's settings")
            _check_shape(tensor, shapes[part], config)
    if config.has_every_layer:
        _check_every_layer(adapter, slices)


def _check_shape(tensor: TensorInfo, shape: tuple[int, ...], config: AdapterConfig) -> None:
    if tensor.shape != shape:
        raise InvalidCheckpoint(
            f"{tensor.name} has the shape {tensor.shape}; the model needs {shape}",
            hint=f"the adapter was trained on {config.base}" if config.base else "",
        )


def _expected_shapes(
    name: str, lora: LoraTensors, config: AdapterConfig, slices: Slices
) -> dict[str, tuple[int, ...]]:
    """The parts that the adapter of one weight must have, with their shapes."""
    rank, (rows, *rest) = config.rank_of(lora.module), slices[name].shape
    if not rest:
        raise InvalidCheckpoint(f"{lora.module} is not a matrix, and LoRA needs one")
    if name in (EMBEDDING, POSITIONS):
        if config.use_dora or config.lora_bias:
            raise InvalidCheckpoint(f"{lora.module}: use_dora or lora_bias on an embedding")
        return {"lora_embedding_A": (rank, rows), "lora_embedding_B": (rest[0], rank)}
    ones = [1] * (len(rest) - 1)
    shapes = {"lora_A": (rank, *rest), "lora_B": (rows, rank, *ones)}
    if config.use_dora:
        shapes["lora_magnitude_vector"] = (1, rows, *ones) if ones else (rows,)
    if config.lora_bias:
        bias = PALIGEMMA.hub_name(name).removesuffix("weight") + "bias"
        if PALIGEMMA.canonical(bias) not in slices:
            raise InvalidCheckpoint(
                f"the adapter's lora_bias adds to the bias of {lora.module}, which has none",
                hint="only PEFT runs such an adapter; train one without lora_bias",
            )
        shapes["lora_B.bias"] = (rows,)
    return shapes


def _check_every_layer(adapter: AdapterTensors, slices: Slices) -> None:
    """Raise InvalidCheckpoint if some layers have an adapter for a projection and others do not."""
    kinds = {_without_index(name) for name in adapter.loras}
    for name in slices:
        if name not in adapter.loras and _without_index(name) in kinds:
            raise InvalidCheckpoint(
                f"{PALIGEMMA.hub_name(name)} has no adapter in {WEIGHTS}, but other layers have one"
            )


def _without_index(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)
