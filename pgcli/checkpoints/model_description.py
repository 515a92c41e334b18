"""Reads which kind of model a folder has: PaliGemma, two towers, a vision tower or a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

from pgcli.checkpoints import open_clip_config
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.open_clip_config import OpenClipConfig
from pgcli.checkpoints.preprocessing import Preprocessing, read_preprocessing
from pgcli.checkpoints.towers_config import FAMILIES, parse_classifier, parse_two_towers
from pgcli.checkpoints.weight_files import file_names, is_open_clip
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig, TwoTowersConfig, VisionConfig

ModelKind = Literal["two_towers", "vision_tower", "classifier", "paligemma"]
SUPPORTED = (
    "supported are PaliGemma, SigLIP, SigLIP 2 of fixed resolution, CLIP, and ViT, SigLIP and CLIP "
    "with a classification head"
)
NAFLEX = (
    "it is SigLIP 2 of variable resolution (NaFlex), whose images keep their proportions in "
    "sequences of patches of different lengths"
)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The kind of a model, its sizes, and what else its folder says in open_clip's layout."""

    kind: ModelKind
    config: PaliGemmaConfig | TwoTowersConfig | ClassifierConfig
    open_clip: OpenClipConfig | None = None

    @property
    def vision(self) -> VisionConfig:
        return self.config.vision

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a classifier."""
        return self.config.labels if isinstance(self.config, ClassifierConfig) else ()


def read_description(folder: Path) -> ModelDescription:
    """The kind and the sizes of a checkpoint. Raises InvalidCheckpoint for other models."""
    if is_open_clip(file_names(folder)):
        found = open_clip_config.read_open_clip(folder)
        return ModelDescription("two_towers", found.towers, found)
    values = read_json(folder / "config.json")
    kind = _kind(values)
    if kind is None:
        raise _unsupported(folder, values.get("model_type"))
    if kind == "paligemma":
        return ModelDescription(kind, read_config(folder))
    parse = parse_classifier if kind == "classifier" else parse_two_towers
    return ModelDescription(kind, _parsed(folder, values, parse))


def _unsupported(folder: Path, model_type: object) -> InvalidCheckpoint:
    if model_type == "siglip2":
        return InvalidCheckpoint(
            f"{folder} is not supported: {NAFLEX}",
            hint="name one of fixed resolution, for example google/siglip2-base-patch16-224",
        )
    return InvalidCheckpoint(
        f"{folder / 'config.json'}: model_type is {brief(model_type)}", hint=SUPPORTED
    )


def image_preprocessing(folder: Path, description: ModelDescription) -> Preprocessing:
    """How images are resized and normalized."""
    if description.open_clip is not None:
        return description.open_clip.preprocessing
    config = description.config
    family = None if isinstance(config, PaliGemmaConfig) else config.family
    return read_preprocessing(folder, config.vision.resolution, family)


def read_kind(folder: Path) -> ModelKind | None:
    """The kind of a checkpoint by its type alone; None for other models.

    Raises InvalidCheckpoint if there is no configuration.
    """
    if is_open_clip(file_names(folder)):
        return "two_towers"
    return _kind(read_json(folder / "config.json"))


def _kind(values: Mapping[str, Any]) -> ModelKind | None:
    model_type = values.get("model_type")
    if model_type == "paligemma":
        return "paligemma"
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return None
    if _is_classifier(values):
        return "classifier"
    return "vision_tower" if model_type == "siglip_vision_model" else "two_towers"


def _is_classifier(values: Mapping[str, Any]) -> bool:
    named = values.get("architectures")
    names = named if isinstance(named, list) else []
    is_classifier = any(str(name).endswith("ForImageClassification") for name in names)
    return is_classifier or values.get("model_type") == "vit"


def _parsed(
    folder: Path,
    values: Mapping[str, Any],
    parse: Callable[[Mapping[str, Any]], Any],
) -> Any:
    try:
        return parse(values)
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / 'config.json'}: {error}", hint=SUPPORTED) from error
