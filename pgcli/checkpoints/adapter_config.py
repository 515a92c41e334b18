"""Reads the `adapter_config.json` of a PEFT adapter."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.weight_files import ADAPTER_CONFIG
from pgcli.errors import InvalidCheckpoint

# Settings of training, which do not change what the adapter computes. PEFT ignores `fan_in_fan_out`
# for the layers that PaliGemma has.
TRAINING_KEYS = frozenset(
    "task_type auto_mapping peft_version revision inference_mode exclude_modules lora_dropout "
    "fan_in_fan_out layers_to_transform layers_pattern megatron_core loftq_config eva_config "
    "corda_config lora_ga_config qalora_group_size runtime_config".split()
)
READ_KEYS = frozenset(
    "peft_type base_model_name_or_path r lora_alpha rank_pattern alpha_pattern use_rslora use_dora "
    "lora_bias bias target_modules modules_to_save init_lora_weights ensure_weight_tying".split()
)
# With these initializations PEFT changes the base weights too, which the adapter does not store.
BASE_CHANGING_INIT = re.compile(r"pissa|corda|olora|loftq", re.IGNORECASE)
OFF_VALUES: tuple[Any, ...] = (None, False, "", [], {})
MAX_RANK = 2**16


@dataclass(frozen=True, slots=True)
class Patterns:
    """Values for modules whose names end with an expression; the first match counts."""

    values: tuple[tuple[re.Pattern[str], float], ...]

    def value(self, module: str, default: float) -> float:
        """The value for a module's name as in PEFT; the default if nothing matches."""
        matches = (value for pattern, value in self.values if pattern.match(module))
        return next(matches, default)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter's settings, as PEFT names them.

    `base` is the model it was trained on, or empty; `has_every_layer` says whether each adapted
    projection is adapted in all layers.
    """

    rank: int
    alpha: float
    ranks: Patterns
    alphas: Patterns
    use_rslora: bool
    use_dora: bool
    lora_bias: bool
    ensure_weight_tying: bool
    modules_to_save: tuple[str, ...]
    base: str
    has_every_layer: bool

    def rank_of(self, module: str) -> int:
        """The rank of a module's two matrices."""
        return int(self.ranks.value(module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of the product of a module's two matrices."""
        rank = self.rank_of(module)
        return self.alphas.value(module, self.alpha) / (
            math.sqrt(rank) if self.use_rslora else rank
        )

    def saves(self, tensor: str) -> bool:
        """Whether a tensor belongs to a module of `modules_to_save`, which is stored whole."""
        parts = tensor.split(".")
        modules = [".".join(parts[:end]) for end in range(1, len(parts))]
        return any(module.endswith(name) for module in modules for name in self.modules_to_save)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """The settings of the adapter in a folder.

    Raises InvalidCheckpoint for an adapter other than LoRA, and for every setting that changes the
    result and is not supported.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise InvalidCheckpoint(
            f"{folder} has no {ADAPTER_CONFIG}",
            hint="an adapter is a folder written by PEFT's save_pretrained; "
            "use --model for a whole model",
        )
    values = read_json(folder / ADAPTER_CONFIG)
    _check_supported(values)
    return AdapterConfig(
        rank=int(_number(values, "r", 8, whole=True)),
        alpha=_number(values, "lora_alpha", 8),
        ranks=_patterns(values, "rank_pattern", whole=True),
        alphas=_patterns(values, "alpha_pattern"),
        use_rslora=bool(values.get("use_rslora")),
        use_dora=bool(values.get("use_dora")),
        lora_bias=bool(values.get("lora_bias")),
        ensure_weight_tying=bool(values.get("ensure_weight_tying")),
        modules_to_save=tuple(_names(values, "modules_to_save")),
        base=_base(values),
        has_every_layer=_has_every_layer(values),
    )


def _has_every_layer(values: dict[str, Any]) -> bool:
    """Whether the adapter has all layers of each projection that it has.

    A regular expression may choose layers by their numbers; one with no other digits than those in
    names of projections does not.
    """
    targets = values.get("target_modules")
    if isinstance(targets, str):
        without_names = re.sub(r"\\d|fc[12]", "", targets)
        if re.search(r"[0-9\[]", without_names):
            return False
    elif not isinstance(targets, list):
        return False
    return values.get("layers_to_transform") is None and values.get("exclude_modules") in OFF_VALUES


def _check_supported(values: dict[str, Any]) -> None:
    kind = values.get("peft_type")
    if kind != "LORA":
        raise InvalidCheckpoint(
            f"{ADAPTER_CONFIG}: peft_type = {brief(kind)} is not supported",
            hint="supported is LORA; merge others into their model with PEFT's merge_and_unload",
        )
    for key, value in values.items():
        if key not in READ_KEYS | TRAINING_KEYS and value not in OFF_VALUES:
            raise InvalidCheckpoint(
                f"{ADAPTER_CONFIG}: {key} = {brief(value)} is not supported",
                hint="merge the adapter into its model with PEFT's merge_and_unload",
            )
    for key in ("use_rslora", "use_dora", "lora_bias", "ensure_weight_tying"):
        if values.get(key) not in (None, True, False):
            raise InvalidCheckpoint(
                f"{ADAPTER_CONFIG}: {key} = {brief(values[key])} is not true or false"
            )
    if values.get("bias", "none") not in ("none", "all", "lora_only"):
        raise InvalidCheckpoint(
            f"{ADAPTER_CONFIG}: bias = {brief(values['bias'])} is not supported"
        )
    init = values.get("init_lora_weights")
    if isinstance(init, str) and BASE_CHANGING_INIT.match(init):
        raise InvalidCheckpoint(
            f"{ADAPTER_CONFIG}: init_lora_weights = {brief(init)} is not supported, because it "
            "changes the base weights too",
            hint="save it as plain LoRA: PEFT's save_pretrained with "
            "path_initial_model_for_weight_conversion",
        )


def _base(values: dict[str, Any]) -> str:
    name = values.get("base_model_name_or_path")
    return name if isinstance(name, str) else ""


def _number(values: dict[str, Any], key: str, default: float, *, whole: bool = False) -> float:
    value = values.get(key, default)
    kinds, least = ((int,), 1) if whole else ((int, float), -math.inf)
    if type(value) not in kinds or not least <= value <= MAX_RANK or math.isinf(value):
        raise InvalidCheckpoint(f"{ADAPTER_CONFIG}: {key} = {brief(value)} is out of range")
    return float(value)


def _names(values: dict[str, Any], key: str) -> Iterable[str]:
    names = values.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InvalidCheckpoint(f"{ADAPTER_CONFIG}: {key} = {brief(names)} is not a list of names")
    return names


def _patterns(values: dict[str, Any], key: str, *, whole: bool = False) -> Patterns:
    expressions = values.get(key) or {}
    if not isinstance(expressions, dict):
        raise InvalidCheckpoint(f"{ADAPTER_CONFIG}: {key} = {brief(expressions)} is not an object")
    return Patterns(
        tuple(
            (_compiled(key, expression), _number(expressions, expression, 1, whole=whole))
            for expression in expressions
        )
    )


def _compiled(key: str, expression: str) -> re.Pattern[str]:
    """The pattern that PEFT makes of the expression, which matches the end of a name.

    Raises InvalidCheckpoint for expressions that could take hours to match: repeated groups, or
    more than a few groups or repetitions.
    """
    repeats = re.findall(r"(?<![\\(])[*+?{]", expression)
    groups = expression.count("(")
    if len(expression) > 500 or max(len(repeats), groups) > 3 or re.search(r"\)[*+?{]", expression):
        raise InvalidCheckpoint(
            f"{ADAPTER_CONFIG}: {key} has the expression {brief(expression)}: too complex"
        )
    try:
        return re.compile(rf"(.*\.)?({expression})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidCheckpoint(
            f"{ADAPTER_CONFIG}: {key} has the expression {brief(expression)}: {error}"
        ) from error
