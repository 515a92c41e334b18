"""Reads the kind of a folder's model: one that generates text, two towers or a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.families import (
    GENERATING,
    ModelConfig,
    ModelKind,
    TensorNames,
    family_of,
)
from pgcli.checkpoints.files import CONFIG, read_object
from pgcli.checkpoints.preprocessing import Preprocessing, read_preprocessing
from pgcli.errors import InvalidCheckpoint
from pgcli.images import ImageSpec
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig, VisionConfig

SUPPORTED = (
    "supported are PaliGemma, Gemma 3 with vision, SigLIP, SigLIP 2 of fixed resolution, CLIP, and "
    "ViT, SigLIP and CLIP with a classification head"
)
NAFLEX = (
    "it is SigLIP 2 of variable resolution (NaFlex), which keeps the proportions of images in "
    "sequences of patches of different lengths"
)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The kind of a model, its sizes and the names of its tensors."""

    kind: ModelKind
    config: ModelConfig
    names: TensorNames

    @property
    def vision(self) -> VisionConfig:
        return self.config.vision

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a classifier."""
        return self.config.labels if isinstance(self.config, ClassifierConfig) else ()


def read_description(folder: Path) -> ModelDescription:
    """The kind and the sizes of a checkpoint. Raises InvalidCheckpoint for other models."""
    values = read_object(folder / CONFIG)
    family = family_of(values)
    if family is None:
        raise _unsupported(folder, values.get("model_type"))
    if family.kind in GENERATING:
        return ModelDescription(family.kind, read_config(folder), family.names)
    try:
        return ModelDescription(family.kind, family.read(values), family.names)
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / CONFIG}: {error}", hint=SUPPORTED) from error


def _unsupported(folder: Path, model_type: object) -> InvalidCheckpoint:
    if model_type == "siglip2":
        return InvalidCheckpoint(
            f"{folder} is not supported: {NAFLEX}",
            hint="name one of fixed resolution, for example google/siglip2-base-patch16-224",
        )
    text_only = " (a model without vision)" if str(model_type).endswith("_text") else ""
    return InvalidCheckpoint(
        f"{folder / CONFIG}: model_type is {brief(model_type)}{text_only}", hint=SUPPORTED
    )


def image_preprocessing(folder: Path, description: ModelDescription) -> Preprocessing:
    """The checkpoint's image preprocessing."""
    config = description.config
    family: str | None = "gemma3" if description.kind == "instruct" else None
    if not isinstance(config, PaliGemmaConfig):
        family = config.family
    return read_preprocessing(folder, config.vision.resolution, family)


def read_image_spec(folder: Path) -> ImageSpec:
    """The resizing of images for a checkpoint, without loading its model.

    Raises InvalidCheckpoint.
    """
    description = read_description(folder)
    return image_preprocessing(folder, description).image_spec(description.vision.resolution)


def read_kind(folder: Path) -> ModelKind | None:
    """The kind of a checkpoint by its type alone; None for other models.

    Raises InvalidCheckpoint if there is no configuration.
    """
    family = family_of(read_object(folder / CONFIG))
    return None if family is None else family.kind
