"""Loads a checkpoint's weights, and checks every name, shape and dtype against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pgcli.checkpoints.families import FUSED, QKV, TensorNames
from pgcli.checkpoints.families.gemma3 import GEMMA3_NAMES
from pgcli.checkpoints.families.paligemma import NAMES as PALIGEMMA
from pgcli.checkpoints.files import weight_files
from pgcli.checkpoints.safetensors_files import (
    TensorInfo,
    check_dtype,
    map_tensor,
    read_headers,
    read_into,
    tensors_equal,
)
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig, TwoTowersConfig
from pgcli.model.cpu.optimize import MappedEmbedding
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import ImageClassifier, TwoTowers

HEAD = "decoder.lm_head.weight"
TOKEN_EMBEDDING = "decoder.embed_tokens.weight"

Model = TypeVar("Model", bound=nn.Module)


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


class WeightChanges(Protocol):
    """Changes to stored weights, such as an adapter's."""

    @property
    def unties(self) -> bool:
        """Whether the LM head gets its own weight, which starts as a copy of the embedding."""

    def changes(self, name: str) -> bool:
        """Whether the weight of this name is changed."""

    def apply(self, name: str, weight: Tensor) -> None:
        """Change a weight, or the rows of a fused one, in place."""


#: Changes one of the model's `parts` after its weights are loaded.
FinishPart = Callable[[PaliGemma, nn.Module], None]


def load_paligemma(
    folder: Path,
    config: PaliGemmaConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    names: TensorNames | None = None,
    adapter: Callable[[PaliGemma], WeightChanges] | None = None,
    finish: FinishPart | None = None,
) -> PaliGemma:
    """The model with a checkpoint's weights, in evaluation mode; never holds a second copy.

    `adapter` returns the changes to the weights of a model of these shapes. `finish` is called with
    each of the model's `parts` while the next one is read. The weights that it replaces are freed,
    so memory never holds the unquantized model. An embedding that the LM head no longer needs is
    memory-mapped.

    Raises InvalidCheckpoint with the tensor's name before memory is allocated: for a missing or
    unknown tensor, another shape, an unsupported dtype, a broken file. A stored LM head that
    differs from the embedding is loaded even if the config says that they are tied.
    """
    names = names or (PALIGEMMA if config.pooled_side is None else GEMMA3_NAMES)
    stored = find_tensors(folder, names)
    model = meta_model(replace(config, tied=config.tied and HEAD not in stored))
    _check_tensors(stored, param_slices(model), names)
    if config.tied and HEAD in stored and tensors_equal(stored[HEAD], stored[TOKEN_EMBEDDING]):
        del stored[HEAD]
        model = meta_model(config)
    changes = None if adapter is None else adapter(model)
    if changes is not None and changes.unties:
        stored[HEAD] = stored[TOKEN_EMBEDDING]
        model = meta_model(replace(model.config, tied=False))
    if finish is None:
        return _read_parts(model, [model], stored, names, dtype, device, changes)

    def finish_and_map(part: nn.Module) -> None:
        is_head = part is model.decoder.lm_head
        finish(model, part)
        is_changed = changes is not None and changes.changes(TOKEN_EMBEDDING)
        if is_head and model.decoder.lm_head is not part and not is_changed:
            mapped = MappedEmbedding(map_tensor(stored[TOKEN_EMBEDDING]), dtype)
            model.decoder.add_module("embed_tokens", mapped)

    parts = [*model.parts()]
    return _read_parts(model, parts, stored, names, dtype, device, changes, finish_and_map)


def load_encoder(
    folder: Path,
    config: TwoTowersConfig | ClassifierConfig,
    names: TensorNames,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> TwoTowers | ImageClassifier:
    """Two towers or an image classifier with a checkpoint's weights.

    Raises InvalidCheckpoint, like `load_paligemma`.
    """
    stored, model = find_tensors(folder, names), meta_encoder(config)
    _check_tensors(stored, param_slices(model), names)
    return _read_parts(model, [model], stored, names, dtype, device)


def count_parameters(config: TwoTowersConfig | ClassifierConfig) -> int:
    """The number of parameters of two towers or a classifier."""
    return sum(parameter.numel() for parameter in meta_encoder(config).parameters())


def meta_encoder(config: TwoTowersConfig | ClassifierConfig) -> TwoTowers | ImageClassifier:
    """Two towers or a classifier on the meta device: shapes without memory."""
    with skip_init():
        return (
            ImageClassifier(config) if isinstance(config, ClassifierConfig) else TwoTowers(config)
        )


def _read_parts(
    model: Model,
    parts: Sequence[nn.Module],
    stored: Mapping[str, TensorInfo],
    names: TensorNames,
    dtype: torch.dtype,
    device: torch.device | str,
    changes: WeightChanges | None = None,
    finish: Callable[[nn.Module], None] | None = None,
) -> Model:
    """Allocate and fill the parameters of each part, from the meta device; then `finish` the part.

    Meanwhile a thread reads the next one.
    """
    slices = param_slices(model.eval())
    owned = _parameters_of_parts(model, parts)

    def start(part: nn.Module) -> Future[None]:
        parameters = _allocate(model, owned[part], dtype, device)
        targets = {
            name: (parameters[target.parameter], target)
            for name, target in slices.items()
            if target.parameter in parameters
        }
        return reader.submit(_fill, targets, stored, changes)

    with ThreadPoolExecutor(1) as reader:
        reading = start(parts[0])
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            reading.result()
            if following is not None:
                reading = start(following)
            if finish is not None:
                finish(part)
    return model


def _parameters_of_parts(
    model: nn.Module, parts: Sequence[nn.Module]
) -> dict[nn.Module, list[str]]:
    """The names of each part's parameters; a shared parameter belongs to the first of its parts."""
    owners = {id(parameter): part for part in reversed(parts) for parameter in part.parameters()}
    if isinstance(model, PaliGemma):
        owners[id(model.decoder.embed_tokens.weight)] = parts[0]  # with the head, which may use it
    owned: dict[nn.Module, list[str]] = {part: [] for part in parts}
    for name, parameter in model.named_parameters():
        owned[owners[id(parameter)]].append(name)
    return owned


def _fill(
    targets: Mapping[str, tuple[Tensor, ParamSlice]],
    stored: Mapping[str, TensorInfo],
    changes: WeightChanges | None,
) -> None:
    """Read the stored tensors into parameters, in file order, and apply the changes."""
    for name in sorted(targets, key=lambda name: (stored[name].file, stored[name].offset)):
        parameter, target = targets[name]
        rows = parameter.narrow(0, target.start, target.shape[0]) if target.shape else parameter
        read_into(rows, stored[name])
        if changes is not None:
            changes.apply(name, rows)


def meta_model(config: PaliGemmaConfig) -> PaliGemma:
    """The model on the meta device: shapes without memory."""
    with skip_init():
        return PaliGemma(config)


def _allocate(
    model: nn.Module, names: Iterable[str], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Replace parameters on the meta device by memory, and return them."""
    # as `to_empty`, which would import sympy first
    parameters: dict[str, Tensor] = {}
    for name in names:
        shape = model.get_parameter(name).shape
        with torch.inference_mode(False):  # another thread fills them
            memory = torch.empty(shape, dtype=dtype, device=device)
            parameters[name] = nn.Parameter(memory, requires_grad=False)
        module, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(module), own_name, parameters[name])
    return parameters


def find_tensors(folder: Path, names: TensorNames) -> dict[str, TensorInfo]:
    """The stored tensors by the model's names for them."""
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        for tensor in read_headers(file):
            if names.is_unused(tensor.name):
                continue
            name = names.canonical(tensor.name)
            if name in tensors:
                raise InvalidCheckpoint(
                    f"{tensor.name} is stored twice: also as {tensors[name].name} in "
                    f"{tensors[name].file.name}"
                )
            tensors[name] = tensor
    return tensors


def param_slices(model: nn.Module) -> dict[str, ParamSlice]:
    """The parameter, or the part of a fused parameter, that each stored tensor fills."""
    slices = {}
    for parameter, tensor in model.named_parameters():
        if tensor.ndim == 0:
            slices[parameter] = ParamSlice(parameter, 0, ())
            continue
        start = 0
        for name, rows in _stored_parts(parameter, tensor.shape[0], model):
            shape = (rows, *tensor.shape[1:])
            slices[name] = ParamSlice(parameter, start, shape)
            start += rows
    return slices


def _stored_parts(parameter: str, rows: int, model: nn.Module) -> list[tuple[str, int]]:
    """The names and row counts of the stored tensors that make up a parameter."""
    fused, parts = next((entry for entry in FUSED.items() if entry[0] in parameter), ("", ("",)))
    shares = [1] * len(parts)
    if fused == QKV and isinstance(model, PaliGemma) and parameter.startswith("decoder."):
        decoder = model.config.decoder
        shares = [decoder.num_heads, decoder.num_kv_heads, decoder.num_kv_heads]
    return [
        (parameter.replace(fused, name), rows * share // sum(shares))
        for name, share in zip(parts, shares, strict=True)
    ]


def _check_tensors(
    stored: Mapping[str, TensorInfo], slices: Mapping[str, ParamSlice], names: TensorNames
) -> None:
    for name, tensor in stored.items():
        if name not in slices:
            raise InvalidCheckpoint(
                f"{tensor.name} in {tensor.file.name} is not a tensor of the model",
                hint="save the model without wrappers; an adapter after PEFT's merge_and_unload",
            )
        check_dtype(tensor)
        expected = slices[name].shape
        if _squeezed(tensor.shape) != _squeezed(expected):
            raise InvalidCheckpoint(
                f"{tensor.name} has the shape {tensor.shape}; config.json implies {expected}"
            )
    for name in slices:
        if name not in stored:
            raise InvalidCheckpoint(
                f"{names.hub_name(name)} is missing from the checkpoint's weights"
            )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading ones: ViT stores (1, P, D) for (P, D), SigLIP (1,) for scalars."""
    while shape[:1] == (1,):
        shape = shape[1:]
    return shape
