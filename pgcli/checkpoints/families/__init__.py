"""The families of checkpoints in the layout of transformers: what each one's table is made of."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import Any, Literal, NamedTuple

from pgcli import registry
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig, TwoTowersConfig

#: Pairs of a name in a checkpoint and in the model.
Pairs = tuple[tuple[str, str], ...]
#: Parts of the names of fused parameters, and of the stored tensors that fill their rows.
QKV = ".qkv_proj."
FUSED = {QKV: (".q_proj.", ".k_proj.", ".v_proj."), ".gate_up_proj.": (".gate_proj.", ".up_proj.")}


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a model's tensors in one layout of checkpoints.

    `prefixes` are pairs of prefixes in the checkpoint and in the model; the first match counts, in
    both directions. Later pairs for the same module read names of other versions. `parts` are pairs
    of substrings to replace after the prefix. Tensors whose name matches `unused` are skipped.
    Parameters in `dimensions` are stored with leading ones up to that many dimensions.
    """

    prefixes: Pairs
    parts: Pairs = ()
    unused: str = r"(?!)"
    dimensions: Mapping[str, int] = field(default_factory=dict)

    def canonical(self, name: str) -> str:
        """The model's name for a checkpoint's tensor; the same name if it is not in the table."""
        return self._renamed(name, 0, 1) or name

    def hub_name(self, name: str) -> str:
        """The checkpoint's name for a tensor of the model. Raises ValueError for another tensor."""
        if renamed := self._renamed(name, 1, 0):
            return renamed
        raise ValueError(f"{name} is not a tensor of the model")

    def _renamed(self, name: str, old: int, new: int) -> str | None:
        """The name with the prefix and the parts of the other side of the pairs."""
        for prefix in self.prefixes:
            if name.startswith(prefix[old]):
                suffix = name.removeprefix(prefix[old])
                for part in self.parts:
                    suffix = suffix.replace(part[old], part[new])
                return prefix[new] + suffix
        return None

    def is_unused(self, name: str) -> bool:
        """Whether the model has no parameter for the checkpoint's tensor."""
        return re.search(self.unused, name) is not None


# Settings that change answers or weights at any level. pgcli ignores other unknown settings, like
# transformers; the shapes of the weights are checked anyway.
REFUSED_KEYS = frozenset(
    """
    attn_logit_softcapping compression_config final_logit_softcapping layer_types
    quantization_config query_pre_attn_scalar rope_scaling sliding_window
    """.split()
)


class ConfigReader:
    """One level of the configuration. Every method removes the key that it reads.

    `present` are the keys that have a value. All methods raise ValueError for a value that is not
    allowed; null is the same as an absent key.
    """

    def __init__(self, level: str, values: Any):
        if not isinstance(values, Mapping):
            problem = "missing" if values is None else "not an object"
            raise ValueError(f"{level or 'config.json'} is {problem}")
        self.level = level
        self.values = dict(values)
        self.present = frozenset(key for key, value in values.items() if value is not None)

    def name(self, key: str) -> str:
        """The key with its level, as in `text_config.head_dim`."""
        return f"{self.level}.{key}" if self.level else key

    def refuse(self, key: str, value: Any, problem: str) -> ValueError:
        """The error for a value, as in `text_config.head_dim is 3, not an even number`."""
        return ValueError(f"{self.name(key)} is {brief(value)}{problem}")

    def pop(self, key: str, default: Any = None) -> Any:
        """The value; the default if it is absent or null."""
        value = self.values.pop(key, None)
        return default if value is None else value

    def expect(self, key: str, *allowed: Any) -> None:
        """Accept one of the allowed values, or none."""
        value = self.pop(key)
        if value is not None and value not in allowed:
            supported = ", ".join(map(repr, allowed)) or "none"
            raise self.refuse(key, value, f"; supported: {supported}")

    def integer(self, key: str, default: int | None = None, *, high: int = 1 << 20) -> int:
        """A whole number from 1 to `high`."""
        value = self.pop(key, default)
        if value is None:
            raise ValueError(f"{self.name(key)} is missing")
        if type(value) is not int or not 1 <= value <= high:
            raise self.refuse(key, value, f", not a whole number from 1 to {high}")
        return value

    def positive(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.pop(key, default)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self.refuse(key, value, ", not a positive number")
        return float(value)

    def fraction(self, key: str, default: float) -> float:
        """A number from 0 to below 1."""
        value = self.pop(key, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise self.refuse(key, value, ", not a number from 0 to below 1")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.pop(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, value, ", not true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them, each id once."""
        value = self.pop(key, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
            raise self.refuse(key, value, ", not a token id or a list of them")
        return tuple(dict.fromkeys(ids))

    def finish(self) -> None:
        """Refuse settings that are not supported."""
        for key in sorted(REFUSED_KEYS & self.values.keys()):
            if self.values[key] is not None:
                raise ValueError(f"{self.name(key)} = {brief(self.values[key])} is not supported")


class SizeKey(NamedTuple):
    """A whole number of a model's configuration: our name, the checkpoint's, and the largest."""

    name: str
    key: str
    high: int = 1 << 20


#: The sizes that every tower has.
LAYERS = (
    SizeKey("width", "hidden_size"),
    SizeKey("depth", "num_hidden_layers", 1000),
    SizeKey("mlp_dim", "intermediate_size"),
    SizeKey("num_heads", "num_attention_heads", 4096),
)


def read_sizes(
    keys: ConfigReader, sizes: Sequence[SizeKey], defaults: Mapping[str, int]
) -> dict[str, Any]:
    """The values of the sizes by our names. Raises ValueError as `ConfigReader.integer`."""
    values = {x.name: keys.integer(x.key, defaults.get(x.name), high=x.high) for x in sizes}
    heads = values["num_heads"]
    if values["width"] % heads and "head_dim" not in values:
        raise keys.refuse(
            "num_attention_heads", heads, f", which does not divide the width {values['width']}"
        )
    return values


def write_sizes(config: object, sizes: Sequence[SizeKey]) -> dict[str, int]:
    """The values of the sizes by the checkpoint's names."""
    return {size.key: getattr(config, size.name) for size in sizes}


ModelKind = Literal[
    "two_towers", "vision_tower", "classifier", "paligemma", "instruct", "multi_vector"
]
#: The kinds that generate text.
GENERATING: tuple[ModelKind, ...] = ("paligemma", "instruct")
ModelConfig = PaliGemmaConfig | TwoTowersConfig | ClassifierConfig


@dataclass(frozen=True, slots=True)
class Family:
    """What models of a family compute, the names of their tensors, and their configuration.

    `read` returns the sizes from the values of a `config.json`; it raises ValueError with the key's
    name for a setting that is not supported. `write` returns values that it reads as the same; None
    for a family that is not trained.
    """

    kind: ModelKind
    names: TensorNames
    read: Callable[[Mapping[str, Any]], ModelConfig]
    write: Callable[[Any], dict[str, Any]] | None = None


def family_of(values: Mapping[str, Any]) -> Family | None:
    """The family of a configuration; None if it is not supported."""
    model_type, named = str(values.get("model_type")), values.get("architectures")
    architectures = named if isinstance(named, list) else []
    for name in architectures:  # other architectures with the configuration of a known one
        if (family := find_family(f"{model_type} {name}")) is not None:
            return family
    is_classifier = model_type not in registry.names("families") or any(
        str(name).endswith("ForImageClassification") for name in architectures
    )
    return find_family(f"{model_type} classifier" if is_classifier else model_type)


def find_family(name: str) -> Family | None:
    """The family of this name; None if it is not supported."""
    known = name in registry.names("families")
    return registry.load("families", name) if known else None


def family_of_model(config: TwoTowersConfig | ClassifierConfig) -> Family:
    """The family as which a model is saved. Raises ValueError for a tower without its other one."""
    if isinstance(config, TwoTowersConfig) and config.text is None:
        raise ValueError("this model has no text tower")
    is_classifier = isinstance(config, ClassifierConfig)
    family = find_family(f"{config.family} classifier" if is_classifier else config.family)
    assert family is not None
    return family
