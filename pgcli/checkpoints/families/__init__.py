"""The families of checkpoints in the layout of transformers, a file for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pgcli import registry
from pgcli.checkpoints.names import TensorNames
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig, TwoTowersConfig

ModelKind = Literal["two_towers", "vision_tower", "classifier", "paligemma"]
ModelConfig = PaliGemmaConfig | TwoTowersConfig | ClassifierConfig


@dataclass(frozen=True, slots=True)
class Family:
    """What models of a family compute, the names of their tensors, and their configuration.

    `read` returns the sizes from the values of a `config.json`; it raises ValueError with the key's
    name for a setting that is not supported. `write` returns values that it reads as the same.
    """

    kind: ModelKind
    names: TensorNames
    read: Callable[[Mapping[str, Any]], ModelConfig]
    write: Callable[[Any], dict[str, Any]]


def family_of(values: Mapping[str, Any]) -> Family | None:
    """The family of a configuration; None if it is not supported."""
    model_type, named = str(values.get("model_type")), values.get("architectures")
    architectures = named if isinstance(named, list) else []
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
