"""Adds LoRA adapters to PaliGemma, and saves and loads them in PEFT's format."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from pgcli.checkpoints import adapters
from pgcli.checkpoints.adapters import FINGERPRINT
from pgcli.checkpoints.families.paligemma import NAMES_OF_MODULES
from pgcli.checkpoints.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from pgcli.checkpoints.save import write_files
from pgcli.checkpoints.weights import ParamSlice, meta_model, param_slices
from pgcli.errors import InvalidCheckpoint, UsageError
from pgcli.model.lora import LoraAdapter, LoraLinear, LoraQKVProjection
from pgcli.model.paligemma import PaliGemma
from pgcli.stores.files import read_json
from pgcli.training.options import TrainOptions
from pgcli.training.rows import seed_of

#: The usual alpha for rank 8 (ms-swift), and for every rank: with alpha / rank, the best learning
#: rate depends little on the rank ("LoRA Without Regret", Schulman et al. 2025).
RANK, ALPHA = 8, 32.0
#: The values of an adapter that must be as `save_adapter` writes them.
SAME_IN_ADAPTERS = ("peft_type", "target_modules", "use_rslora", "use_dora", "bias", "rank_pattern")
#: Layers by target, by their names in checkpoints; "vision" adds the vision tower.
ATTENTION, MLP, VISION = "attention", "all", "vision"
DECODER_LAYERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        ATTENTION: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        MLP: ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    }
)
VISION_LAYERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        ATTENTION: (
            *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "self_attn.out_proj",
        ),
        MLP: ("mlp.fc1", "mlp.fc2"),
    }
)


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The settings of a run's adapters.

    `targets` is "attention" (queries, keys, values and outputs of the decoder) or "all" (its MLPs
    too); ",vision" after it adds the same layers of the vision tower.
    """

    rank: int = RANK
    alpha: float = ALPHA
    dropout: float = 0.0
    targets: str = ATTENTION

    @property
    def scale(self) -> float:
        """The factor of an adapter's matrix product."""
        return self.alpha / self.rank

    @property
    def has_vision(self) -> bool:
        """Whether the vision tower has adapters, so image features change in training."""
        return self.targets.endswith(VISION)

    @property
    def pattern(self) -> str:
        """A regular expression of the adapted modules, by their names in transformers.

        It also matches the names before version 4.52. Queries, keys and values of the vision
        tower have the same names as the decoder's, so it names the tower too.
        """
        tower = r"vision_tower\.(vision_model\.)?encoder"
        parts = [rf"language_model\.(model\.)?layers\.\d+\.{self._layers(DECODER_LAYERS)}"]
        if self.has_vision:
            parts.append(rf"{tower}\.layers\.\d+\.{self._layers(VISION_LAYERS)}")
        return rf"(.*\.)?({'|'.join(parts)})"

    def _layers(self, layers: Mapping[str, tuple[str, ...]]) -> str:
        names = layers[ATTENTION] + (layers[MLP] if self.targets.startswith(MLP) else ())
        return f"({'|'.join(map(re.escape, names))})"


def lora_settings(options: TrainOptions) -> LoraSettings:
    """The settings of the options, or of the adapter that they continue. Raises UsageError."""
    if options.adapter is not None:
        return adapter_settings(Path(options.adapter), options.dropout)
    return LoraSettings(
        options.rank or RANK, options.alpha or ALPHA, options.dropout, options.targets or ATTENTION
    )


def add_lora(model: PaliGemma, settings: LoraSettings, seed: int) -> None:
    """Freeze the model and add adapters to its layers, which at first do not change its outputs.

    A fused layer has an adapter for each of its parts. The seed and the layer's name determine the
    initial matrices.
    """
    model.requires_grad_(requires_grad=False)
    weight = model.projector.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    for layer, parts in _targets(model, settings).items():
        base = model.get_submodule(layer)
        adapters = {}
        for name, part in parts.items():
            rows, width = part.shape
            adapter = LoraAdapter(
                width, rows, rank=settings.rank, scale=settings.scale, dropout=settings.dropout
            )
            adapter.init(torch.Generator().manual_seed(seed_of(seed, "lora", layer, name)))
            adapters[name] = adapter.to(weight.device, dtype)
        kind = LoraQKVProjection if hasattr(base, "last_query") else LoraLinear
        model.set_submodule(layer, kind(base, adapters).train(base.training))


def _targets(model: PaliGemma, settings: LoraSettings) -> dict[str, dict[str, ParamSlice]]:
    """The layers to adapt, each with its parts by their names in checkpoints."""
    pattern = re.compile(settings.pattern)
    adapted: dict[str, dict[str, ParamSlice]] = defaultdict(dict)
    for name, part in param_slices(meta_model(model.config)).items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and pattern.fullmatch(NAMES_OF_MODULES.hub_name(module + ".")[:-1]):
            adapted[part.parameter.removesuffix(".weight")][module.rpartition(".")[2]] = part
    return adapted


def save_adapter(
    model: PaliGemma,
    settings: LoraSettings,
    folder: Path,
    *,
    base_model: str,
    revision: str | None = None,
    fingerprint: str | None = None,
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`, as PEFT writes and reads them.

    `base_model` and `revision` name the checkpoint the adapter was trained on, and `fingerprint`
    identifies its weights.
    """
    tensors = {
        name: matrix.detach().to("cpu").contiguous() for name, matrix in _matrices(model).items()
    }
    values = _peft_values(settings, base_model, revision)
    metadata = {} if fingerprint is None else {FINGERPRINT: fingerprint}
    names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    write_files(folder, values, tensors, names=names, metadata=metadata)


def load_adapter(model: PaliGemma, folder: Path) -> None:
    """Fill the adapters of a model with the `adapter_settings` of the folder.

    Raises InvalidCheckpoint for a file with other layers, and for values that are not finite.
    """
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    matrices = _matrices(model)
    for name in sorted(tensors.keys() | matrices.keys()):
        shapes = [tuple(named[name].shape) for named in (tensors, matrices) if name in named]
        if len(shapes) < 2 or shapes[0] != shapes[1]:
            raise InvalidCheckpoint(
                f"the adapter {folder} does not fit the model: {name} is missing or has another "
                "shape in one of them",
                hint="name an adapter that pgcli train has made for this model",
            )
    with torch.no_grad():
        for name, matrix in matrices.items():
            matrix.copy_(adapters.check_finite_weights(name, tensors[name]))


def adapter_settings(folder: Path, dropout: float = 0.0) -> LoraSettings:
    """The settings of an adapter that `save_adapter` wrote. Raises UsageError."""
    values = read_json(folder / ADAPTER_CONFIG)
    if values is None:
        raise UsageError(f"{folder} has no {ADAPTER_CONFIG}", hint="<--adapter runs/adapter>")
    for targets in (ATTENTION, MLP, f"{ATTENTION},{VISION}", f"{MLP},{VISION}"):
        settings = LoraSettings(
            values.get("r", 0), float(values.get("lora_alpha", 0)), dropout, targets
        )
        expected = _peft_values(settings, "", None)
        if all(values.get(name) == expected[name] for name in SAME_IN_ADAPTERS):
            return settings
    raise UsageError(
        f"pgcli train cannot continue the adapter {folder}: another tool made it",
        hint="merge it with pgcli.checkpoints.save.merge_adapter, and train the result",
    )


def _peft_values(settings: LoraSettings, base_model: str, revision: str | None) -> dict[str, Any]:
    """The values of `adapter_config.json`."""
    alpha = float(settings.alpha)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "auto_mapping": None,
        "base_model_name_or_path": base_model,
        "revision": revision,
        "inference_mode": True,
        "r": settings.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": settings.dropout,
        "use_rslora": False,
        "use_dora": False,
        "lora_bias": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": settings.pattern,
        "exclude_modules": None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }


def _matrices(model: PaliGemma) -> dict[str, nn.Parameter]:
    """The matrices of the adapters, by their names in PEFT's files."""
    matrices = {}
    for layer, module in model.named_modules():
        if isinstance(module, LoraLinear):
            for name, adapter in module.parts():
                part = f"{layer.rpartition('.')[0]}.{name}."
                hub = adapters.PEFT_PREFIX + NAMES_OF_MODULES.hub_name(part)
                for kind, matrix in adapter.named_parameters():
                    matrices[f"{hub}{kind}.weight"] = matrix
    return matrices
