"""`adapter_model.safetensors` of a PEFT folder -> what each tensor is, name and shape checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pgcli.checkpoints.adapter_config import AdapterConfig
from pgcli.checkpoints.names import canonical, hub_name
from pgcli.checkpoints.safetensors_files import DTYPES, check_header_size
from pgcli.checkpoints.weights import EMBEDDING, ParamSlice
from pgcli.errors import InvalidCheckpoint

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PART = re.compile(
    r"(?P<module>.+?)\.(?P<part>lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)"
    r"(\.(?!weight$|bias$)[^.]+)?(?P<bias>\.bias)?(\.weight)?"
)
POSITIONS = "vision.embeddings.position_embedding.weight"


@dataclass(slots=True)
class LoraTensors:
    """What is stored for one weight: its module as the file spells it, part -> tensor's name."""

    module: str
    parts: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class AdapterTensors:
    """An adapter's tensors by the names of this code; `shapes` is by the file's own names."""

    loras: dict[str, LoraTensors] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def weights_file(folder: Path) -> Path:
    """The file with the matrices; InvalidCheckpoint where there is none, or only a pickle."""
    file = folder / WEIGHTS
    if file.is_file():
        return file
    pickle = folder / "adapter_model.bin"
    if pickle.is_file():
        raise InvalidCheckpoint(
            f"{pickle} is a pickle, which can run code",
            hint="load it with PEFT where it is trusted and save it again: save_pretrained "
            f"writes {WEIGHTS}",
        )
    raise InvalidCheckpoint(f"{folder} has no {WEIGHTS}", hint="download the adapter again")


def open_tensors(file: Path) -> Any:
    """The file, opened for reading tensors by name; InvalidCheckpoint where it is broken."""
    try:
        check_header_size(file)
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(
            f"{file} is no intact safetensors file: {error}", hint="download the adapter again"
        ) from error


def sort(opened: Any, home: dict[str, ParamSlice]) -> AdapterTensors:
    """What each tensor is, from its name; unknown names, repeated ones and dtypes are refused."""
    stored = AdapterTensors()
    for name in sorted(opened.keys()):
        header = opened.get_slice(name)
        if header.get_dtype() not in DTYPES:
            raise InvalidCheckpoint(
                f"{name} is stored as {header.get_dtype()}",
                hint=f"supported: {', '.join(DTYPES)}",
            )
        stored.shapes[name] = tuple(header.get_shape())
        found = PART.fullmatch(name.removeprefix(PREFIX))
        if found:
            weight = _known(found["module"] + ".weight", name, home)
            parts = stored.loras.setdefault(weight, LoraTensors(found["module"])).parts
            part = found["part"] + (found["bias"] or "")
        else:
            weight = _whole(name, home)
            parts, part = stored.whole, weight
        if part in parts:
            raise InvalidCheckpoint(f"{name} is stored twice, also as {parts[part]}")
        parts[part] = name
    if not stored.loras:
        raise InvalidCheckpoint(f"{WEIGHTS} holds no LoRA matrices")
    return stored


def _whole(tensor: str, home: dict[str, ParamSlice]) -> str:
    """This code's name for a tensor that is stored as it is, not as LoRA matrices."""
    plain = tensor.removeprefix(PREFIX).replace(".base_layer.", ".")
    if ".modules_to_save." not in plain:
        return _known(plain, tensor, home)
    module, rest = plain.split(".modules_to_save.", 1)
    bare = f"{module}.{rest}"
    if canonical(bare) in home:
        return canonical(bare)
    return _known(f"{module}.{rest.partition('.')[2]}", tensor, home)


def _known(plain: str, tensor: str, home: dict[str, ParamSlice]) -> str:
    name = canonical(plain)
    if name not in home:
        raise InvalidCheckpoint(f"{tensor} in {WEIGHTS} has no place in the model")
    return name


def insist(stored: AdapterTensors, config: AdapterConfig, home: dict[str, ParamSlice]) -> None:
    """Raise InvalidCheckpoint for a matrix without its other, a wrong shape, a missing layer."""
    hint = f"the adapter was trained on {config.base}" if config.base else ""

    def insist_shape(tensor: str, shape: tuple[int, ...]) -> None:
        if stored.shapes[tensor] != shape:
            raise InvalidCheckpoint(
                f"{tensor} has the shape {stored.shapes[tensor]}; the model asks for {shape}",
                hint=hint,
            )

    for name, tensor in stored.whole.items():
        insist_shape(tensor, home[name].shape)
    for name, lora in stored.loras.items():
        shapes = _shapes(name, lora, config, home)
        for part in shapes.keys() - lora.parts.keys():
            raise InvalidCheckpoint(f"{lora.module} has no {part} in {WEIGHTS}")
        for part, tensor in lora.parts.items():
            if part not in shapes:
                raise InvalidCheckpoint(f"{tensor} does not go with the rest of the adapter")
            insist_shape(tensor, shapes[part])
    if config.every_layer:
        _insist_every_layer(stored, home)


def _shapes(
    name: str, lora: LoraTensors, config: AdapterConfig, home: dict[str, ParamSlice]
) -> dict[str, tuple[int, ...]]:
    """The parts that one weight's adapter must have, each with its shape."""
    rank, (rows, *rest) = config.rank_of(lora.module), home[name].shape
    if not rest:
        raise InvalidCheckpoint(f"{lora.module} is no matrix; LoRA cannot be for it")
    if name in (EMBEDDING, POSITIONS):
        if config.dora or config.with_bias:
            raise InvalidCheckpoint(f"{lora.module}: use_dora or lora_bias on an embedding")
        return {"lora_embedding_A": (rank, rows), "lora_embedding_B": (rest[0], rank)}
    ones = [1] * (len(rest) - 1)
    shapes = {"lora_A": (rank, *rest), "lora_B": (rows, rank, *ones)}
    if config.dora:
        shapes["lora_magnitude_vector"] = (1, rows, *ones) if ones else (rows,)
    if config.with_bias:
        _known(hub_name(name).removesuffix("weight") + "bias", f"{lora.module}.lora_B.bias", home)
        shapes["lora_B.bias"] = (rows,)
    return shapes


def _insist_every_layer(stored: AdapterTensors, home: dict[str, ParamSlice]) -> None:
    """A file cut short has an adapter for a projection in some layers of a tower, not in all."""
    kinds = {_kind(name) for name in stored.loras}
    for name in home:
        if name not in stored.loras and _kind(name) in kinds:
            raise InvalidCheckpoint(
                f"{hub_name(name)} has no adapter in {WEIGHTS}, other layers' have one"
            )


def _kind(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)
