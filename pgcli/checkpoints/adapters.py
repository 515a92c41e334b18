"""Merges a PEFT LoRA adapter into a model's weights, and warns if it was made for other weights.

    weight (rows, ...) + scale * lora_B (rows, r) @ lora_A (r, ...)

The sum is computed in float32 and rounded once to the weight's dtype. PEFT's merge does the same
with its defaults, which keep an adapter's matrices in float32. If the embedding and the LM head are
tied, a change to one of them does not change the other, as in PEFT's unmerged model; PEFT's merge
changes both. Supported are LoRA, rsLoRA and full modules (`modules_to_save`).
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path, PurePosixPath
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from pgcli.checkpoints.families.colpali import ADAPTED_NAMES
from pgcli.checkpoints.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    file_names,
    read_object,
    required_files,
)
from pgcli.checkpoints.find import Checkpoint, find_local
from pgcli.checkpoints.safetensors_files import (
    TensorInfo,
    check_dtype,
    read_headers,
    read_metadata,
    read_tensor,
    tensors_equal,
)
from pgcli.checkpoints.weights import HEAD, TOKEN_EMBEDDING, ParamSlice, find_tensors, param_slices
from pgcli.errors import InvalidCheckpoint, PgcliError
from pgcli.model.paligemma import PaliGemma

# Settings that pgcli reads, and training settings, which do not change the adapter's output. PEFT
# ignores `fan_in_fan_out` for PaliGemma's layers. pgcli supports no other setting that is on.
KNOWN_KEYS = frozenset(
    """
    alpha_pattern auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config
    exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern
    layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config megatron_core
    modules_to_save peft_type peft_version qalora_group_size r rank_pattern revision runtime_config
    target_modules task_type use_rslora
    """.split()
)
OFF_VALUES: tuple[Any, ...] = (None, False, "", "none", [], {})
# With these initializations PEFT changes the base weights too, which the adapter does not store.
BASE_CHANGING_INIT = re.compile(r"pissa|corda|olora|loftq", re.IGNORECASE)
MERGE = "merge it into its model with PEFT's merge_and_unload"
MAX_RANK = 2**16
PEFT_PREFIX = "base_model.model."
LORA_NAME = re.compile(
    r"(?P<module>.+?)\.(?P<matrix>lora_[AB]|lora_embedding_[AB])(\.(?!weight$|bias$)[^.]+)?(\.weight)?"
)
POSITIONS = "vision.embeddings.position_embedding.weight"
CHUNK = 2**20  # elements: 4 MiB of float32, whatever the size of a weight
Slices = dict[str, ParamSlice]
Patterns = tuple[tuple[re.Pattern[str], float], ...]
#: The key of the fingerprint in the metadata of an adapter's weights.
FINGERPRINT = "base_fingerprint"
SAMPLED_VALUES = 64
FINGERPRINT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter's settings, with PEFT's names.

    `ranks` and `alphas` apply to module names that match an expression; the first match counts.
    `base` is the model it was trained on, or empty.
    """

    rank: int
    alpha: float
    ranks: Patterns
    alphas: Patterns
    use_rslora: bool
    ensure_weight_tying: bool
    modules_to_save: tuple[str, ...]
    base: str

    def rank_of(self, module: str) -> int:
        """The rank of a module's two matrices."""
        return int(_first_match(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of the product of a module's two matrices."""
        rank = self.rank_of(module)
        alpha = _first_match(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def saves(self, tensor: str) -> bool:
        """Whether a tensor belongs to `modules_to_save`, which are stored as full weights."""
        names = tensor.split(".")
        modules = [".".join(names[:end]) for end in range(1, len(names))]
        return any(module.endswith(name) for module in modules for name in self.modules_to_save)


@dataclass(slots=True)
class LoraMatrices:
    """The stored matrices of one adapted weight; `module` is its name in the file."""

    module: str
    matrices: dict[str, TensorInfo] = field(default_factory=dict)


@dataclass(slots=True)
class AdapterTensors:
    """An adapter's tensors by the model's names: LoRA matrices and full weights."""

    loras: dict[str, LoraMatrices] = field(default_factory=dict)
    full_weights: dict[str, TensorInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that fits a model, as `WeightChanges`: it merges itself into the weights.

    `unties` says whether a tied LM head gets a separate weight.
    """

    folder: Path
    config: AdapterConfig
    tensors: AdapterTensors
    unties: bool

    def changes(self, name: str) -> bool:
        """Whether a weight is adapted, or stored in full."""
        return name in self.tensors.loras or self._full_weight(name) is not None

    @torch.no_grad()
    def apply(self, name: str, weight: Tensor) -> None:
        """Merge the adapter's changes to this weight in place."""
        with _adapter_named(self.folder):
            if full := self._full_weight(name):
                weight.copy_(check_finite_weights(full.name, read_tensor(full)))
            if lora := self.tensors.loras.get(name):
                _add_lora(weight.flatten(1), lora, self.config)

    def _full_weight(self, name: str) -> TensorInfo | None:
        full = self.tensors.full_weights
        if name == HEAD and self.unties and HEAD not in full and TOKEN_EMBEDDING in full:
            # an untrained embedding is also the head's
            return None if self.config.saves(full[TOKEN_EMBEDDING].name) else full[TOKEN_EMBEDDING]
        return full.get(name)


def open_adapter(folder: Path, model: PaliGemma) -> Adapter:
    """The adapter in a folder, for a model whose weights may be on the meta device.

    Raises InvalidCheckpoint with the name of the tensor or setting that is unknown, missing or of
    another shape.
    """
    slices = param_slices(model)
    slices.setdefault(HEAD, ParamSlice(HEAD, 0, slices[TOKEN_EMBEDDING].shape))
    with _adapter_named(folder):
        required_files(str(folder), "adapter", file_names(folder), folder.joinpath)
        config = read_adapter_config(folder)
        tensors = read_adapter(folder / ADAPTER_WEIGHTS, slices)
        check_adapter(tensors, config, slices)
        full, loras = tensors.full_weights, tensors.loras
        own = {name for name, tensor in full.items() if config.saves(tensor.name)}
        is_copy = model.config.tied and HEAD not in own and {HEAD, TOKEN_EMBEDDING} <= full.keys()
        # PEFT saves both tensors of tied weights
        if is_copy and tensors_equal(full[HEAD], full[TOKEN_EMBEDDING]):
            del full[HEAD]
        changes_head = HEAD in full or HEAD in loras
        changes_embedding = TOKEN_EMBEDDING in own or TOKEN_EMBEDDING in loras
        unties = model.config.tied and (
            changes_head or (changes_embedding and not config.ensure_weight_tying)
        )
        return Adapter(folder, config, tensors, unties)


@contextmanager
def _adapter_named(folder: Path) -> Iterator[None]:
    """Put the adapter's name before the message of an InvalidCheckpoint, and add a hint."""
    try:
        yield
    except InvalidCheckpoint as problem:
        hint = problem.hint or "save it again with PEFT's save_pretrained, or ask its author"
        raise InvalidCheckpoint(f"cannot load the adapter: {problem}", hint=hint) from problem


def read_adapter_config(folder: Path) -> AdapterConfig:
    """The settings of the adapter in a folder.

    Raises InvalidCheckpoint for an adapter other than LoRA, and for every setting that changes the
    result and is not supported.
    """
    values = read_object(folder / ADAPTER_CONFIG)
    if values.get("peft_type") != "LORA":
        raise _unsupported("peft_type", values.get("peft_type"))
    for key, value in values.items():
        if key not in KNOWN_KEYS and value not in OFF_VALUES:
            raise _unsupported(key, value)
    for key in ("use_rslora", "ensure_weight_tying"):
        if values.get(key) not in (None, True, False):
            raise _unsupported(key, values[key])
    init = values.get("init_lora_weights")
    if isinstance(init, str) and BASE_CHANGING_INIT.match(init):
        raise InvalidCheckpoint(
            f"{ADAPTER_CONFIG}: init_lora_weights = {brief(init)} is not supported, because it "
            "changes the base weights too",
            hint="save it as plain LoRA: PEFT's save_pretrained with "
            "path_initial_model_for_weight_conversion",
        )
    saved, base = values.get("modules_to_save") or [], values.get("base_model_name_or_path")
    if not isinstance(saved, list) or not all(isinstance(name, str) and name for name in saved):
        raise _unsupported("modules_to_save", saved)
    return AdapterConfig(
        rank=int(_number(values, "r", 8, integer=True)),
        alpha=_number(values, "lora_alpha", 8),
        ranks=_patterns(values, "rank_pattern", integer=True),
        alphas=_patterns(values, "alpha_pattern"),
        use_rslora=bool(values.get("use_rslora")),
        ensure_weight_tying=bool(values.get("ensure_weight_tying")),
        modules_to_save=tuple(saved),
        base=base if isinstance(base, str) else "",
    )


def _unsupported(key: str, value: object) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"{ADAPTER_CONFIG}: {key} = {brief(value)} is not supported; supported are LoRA, rsLoRA "
        "and modules_to_save",
        hint=MERGE,
    )


def _number(values: dict[str, Any], key: str, default: float, *, integer: bool = False) -> float:
    value = values.get(key, default)
    kinds, least = ((int,), 1) if integer else ((int, float), -math.inf)
    if type(value) not in kinds or not least <= value <= MAX_RANK or math.isinf(value):
        raise InvalidCheckpoint(f"{ADAPTER_CONFIG}: {key} = {brief(value)} is out of range")
    return float(value)


def _patterns(values: dict[str, Any], key: str, *, integer: bool = False) -> Patterns:
    """The numbers by the patterns that PEFT makes of expressions, which match ends of names."""
    expressions = values.get(key) or {}
    if not isinstance(expressions, dict):
        raise InvalidCheckpoint(f"{ADAPTER_CONFIG}: {key} = {brief(expressions)} is not an object")
    patterns = []
    for expression in expressions:
        try:
            pattern = re.compile(rf"(.*\.)?({expression})$")
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidCheckpoint(
                f"{ADAPTER_CONFIG}: {key} has the expression {brief(expression)}: {error}"
            ) from error
        patterns.append((pattern, _number(expressions, expression, 1, integer=integer)))
    return tuple(patterns)


def _first_match(patterns: Patterns, module: str, default: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def read_adapter(file: Path, slices: Slices) -> AdapterTensors:
    """The tensors in the header of an adapter's file, assigned to the weights that they change.

    Raises InvalidCheckpoint for an unknown name, a tensor stored twice, and an unsupported dtype.
    """
    adapter = AdapterTensors()
    for tensor in sorted(read_headers(file), key=lambda tensor: tensor.name):
        check_dtype(tensor)
        plain = tensor.name.removeprefix(PEFT_PREFIX)
        lora = LORA_NAME.fullmatch(plain)
        if lora:
            weight = _model_name(lora["module"] + ".weight", tensor, slices)
            tensors = adapter.loras.setdefault(weight, LoraMatrices(lora["module"])).matrices
            key = lora["matrix"]
        else:
            key, tensors = _full_weight_name(plain, tensor, slices), adapter.full_weights
        if key in tensors:
            raise InvalidCheckpoint(f"{tensor.name} is stored twice, also as {tensors[key].name}")
        tensors[key] = tensor
    if not adapter.loras:
        raise InvalidCheckpoint(f"{ADAPTER_WEIGHTS} has no LoRA matrices")
    return adapter


def _full_weight_name(plain: str, tensor: TensorInfo, slices: Slices) -> str:
    """The model's name of a full weight."""
    module, saved, parameter = plain.replace(".base_layer.", ".").partition(".modules_to_save.")
    if not saved:
        return _model_name(module, tensor, slices)
    name = ADAPTED_NAMES.canonical(f"{module}.{parameter}")
    if name in slices:  # else the adapter's name comes before the parameter's
        return name
    return _model_name(f"{module}.{parameter.partition('.')[2]}", tensor, slices)


def _model_name(plain: str, tensor: TensorInfo, slices: Slices) -> str:
    name = ADAPTED_NAMES.canonical(plain)
    if name not in slices:
        raise InvalidCheckpoint(f"{tensor.name} in {ADAPTER_WEIGHTS} is not a tensor of the model")
    return name


def check_adapter(adapter: AdapterTensors, config: AdapterConfig, slices: Slices) -> None:
    """Raise InvalidCheckpoint for a matrix without its pair, a wrong shape, a missing layer."""

    def check_shape(tensor: TensorInfo, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise InvalidCheckpoint(
                f"{tensor.name} has the shape {tensor.shape}; the model needs {shape}",
                hint=f"the adapter was trained on {config.base}" if config.base else "",
            )

    for name, tensor in adapter.full_weights.items():
        check_shape(tensor, slices[name].shape)
    for name, lora in adapter.loras.items():
        rank, (rows, *columns) = config.rank_of(lora.module), slices[name].shape
        if not columns:
            raise InvalidCheckpoint(f"{lora.module} is not a matrix, and LoRA needs one")
        shapes = {"lora_A": (rank, *columns), "lora_B": (rows, rank, *[1] * (len(columns) - 1))}
        if name in (TOKEN_EMBEDDING, POSITIONS):
            shapes = {"lora_embedding_A": (rank, rows), "lora_embedding_B": (columns[0], rank)}
        for matrix in sorted(shapes.keys() - lora.matrices.keys()):
            raise InvalidCheckpoint(f"{lora.module} has no {matrix} in {ADAPTER_WEIGHTS}")
        for matrix, tensor in lora.matrices.items():
            if matrix not in shapes:
                raise InvalidCheckpoint(f"{tensor.name} is not a matrix of {lora.module}")
            check_shape(tensor, shapes[matrix])


def check_finite_weights(name: str, values: Tensor) -> Tensor:
    """The values of an adapter's tensor. Raises InvalidCheckpoint for NaN and infinity, which a
    training run that diverges leaves behind.
    """
    if not bool(values.isfinite().all()):
        raise InvalidCheckpoint(
            f"{name} in {ADAPTER_WEIGHTS} has NaN or infinity",
            hint="name an earlier checkpoint of its training, or train it again",
        )
    return values


def _add_lora(weight: Tensor, lora: LoraMatrices, config: AdapterConfig) -> None:
    wide = torch.promote_types(weight.dtype, torch.float32)
    matrices = {
        name: check_finite_weights(tensor.name, read_tensor(tensor)).to(weight.device, wide)
        for name, tensor in lora.matrices.items()
    }
    if "lora_embedding_A" in matrices:
        up, down = matrices["lora_embedding_A"].T, matrices["lora_embedding_B"].T
    else:
        up, down = matrices["lora_B"].flatten(1), matrices["lora_A"].flatten(1)
    scale, rows = config.scale_of(lora.module), max(1, CHUNK // weight.shape[1])
    for start in range(0, len(weight), rows):
        chunk = slice(start, start + rows)
        weight[chunk] = torch.addmm(weight[chunk].to(wide), up[chunk], down, alpha=scale)


def fingerprint_of(folder: Path) -> str:
    """A digest of the first values of each tensor of a checkpoint, in bfloat16.

    It does not depend on the folder, shards, tensor names or floating-point type. It ignores the
    LM head, which checkpoints with tied weights may or may not store. Raises InvalidCheckpoint.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(find_tensors(folder, ADAPTED_NAMES).items()):
        check_dtype(tensor)
        size = prod(tensor.shape)
        if name == HEAD or not size:
            continue
        count = min(SAMPLED_VALUES, size)
        values = read_tensor(replace(tensor, shape=(count,), nbytes=count * tensor.nbytes // size))
        digest.update(name.encode() + values.bfloat16().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:FINGERPRINT_LENGTH]


def warn_of_another_base(adapter: Checkpoint, model: Checkpoint) -> None:
    """Warn, with both names, of an adapter that was made for other weights than the model's.

    `pgcli train` writes the fingerprint of the weights into the adapter. Without it, the model that
    `adapter_config.json` names is compared if it is on this machine, or else its name.
    """
    values = read_object(adapter.folder / ADAPTER_CONFIG)
    base, revision = values.get("base_model_name_or_path"), values.get("revision")
    base = base if isinstance(base, str) else ""
    expected = read_metadata(adapter.folder / ADAPTER_WEIGHTS).get(FINGERPRINT)
    if expected is None and base not in ("", model.name):
        expected = _local_fingerprint(base, revision if isinstance(revision, str) else None)
    if expected is not None:
        if expected != fingerprint_of(model.folder):
            warnings.warn(
                f"adapter {adapter.name} was trained on {base or 'another model'}, but "
                f"{model.name} has different weights; answers may be wrong",
                stacklevel=1,
            )
    elif PurePosixPath(base).name not in ("", PurePosixPath(model.name).name):
        warnings.warn(
            f"adapter {adapter.name} was trained on {base}, which is not on this machine, so pgcli "
            f"cannot check that {model.name} has the same weights",
            stacklevel=1,
        )


def _local_fingerprint(name: str, revision: str | None) -> str | None:
    """The fingerprint of a model, if it is on this machine."""
    with suppress(PgcliError):
        checkpoint = find_local(name, revision)
        return None if checkpoint is None else fingerprint_of(checkpoint.folder)
    return None
