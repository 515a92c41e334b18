"""Reads what a checkpoint is: the kind of its model, its sizes, its stop tokens, its image size."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.families import (
    GENERATING,
    ConfigReader,
    ModelConfig,
    ModelKind,
    TensorNames,
    family_of,
)
from pgcli.checkpoints.families.paligemma import parse_config
from pgcli.checkpoints.files import CONFIG, GENERATION, read_object, read_optional
from pgcli.checkpoints.preprocessing import Preprocessing, read_preprocessing
from pgcli.errors import InvalidCheckpoint
from pgcli.images import ImageSpec
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig, VisionConfig

#: Settings that change transformers' greedy answers, with their neutral values.
NEUTRAL: Mapping[str, Any] = {
    "begin_suppress_tokens": [],
    "suppress_tokens": [],
    "bad_words_ids": [],
    **dict.fromkeys(("diversity_penalty", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("num_beam_groups", "num_beams"), 1),
    "token_healing": False,
    **dict.fromkeys(("constraints", "dola_layers", "exponential_decay_length_penalty"), None),
    **dict.fromkeys(("force_words_ids", "forced_bos_token_id", "forced_eos_token_id"), None),
    **dict.fromkeys(
        ("penalty_alpha", "sequence_bias", "stop_strings", "watermarking_config"), None
    ),
}
#: Suppressing tokens that no answer contains has no effect.
SUPPRESSED = ("begin_suppress_tokens", "suppress_tokens")


def read_config(folder: Path) -> PaliGemmaConfig:
    """The model's sizes from `config.json`, and the stop tokens of `generation_config.json`.

    Without stop tokens there, `config.json` has them. Raises InvalidCheckpoint for an unsupported
    setting. Warns of settings of `generation_config.json` that pgcli ignores.
    """
    values = read_object(folder / CONFIG)
    family = family_of(values)
    has_decoder = family is not None and family.kind in (*GENERATING, "multi_vector")
    read = family.read if family is not None and has_decoder else parse_config
    try:
        config = read(values)
        assert isinstance(config, PaliGemmaConfig)
    except ValueError as error:
        raise InvalidCheckpoint(
            f"{folder / CONFIG}: {error}",
            hint="supported are PaliGemma, PaliGemma 2 and Gemma 3, such as "
            "google/paligemma2-3b-mix-224",
        ) from error
    try:
        stop_tokens = ConfigReader(GENERATION, read_optional(folder / GENERATION)).token_ids(
            "eos_token_id"
        )
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / GENERATION}: {error}") from error
    if settings := settings_not_followed(folder, never_generated={config.image_token_id}):
        warn_not_followed(settings)
    return replace(config, stop_tokens=stop_tokens or config.stop_tokens)


@cache  # one run reads the file several times
def warn_not_followed(settings: tuple[str, ...]) -> None:
    """Warn of generation settings that pgcli ignores."""
    warnings.warn(
        f"{GENERATION}: transformers' greedy answers follow {', '.join(settings)}, "
        "and pgcli's do not",
        stacklevel=1,
    )


def settings_not_followed(folder: Path, *, never_generated: Collection[int]) -> tuple[str, ...]:
    """`name = value` of each setting that changes transformers' greedy answers, but not pgcli's.

    The tokens that are `never_generated` may be suppressed.
    """
    settings = []
    for name, value in read_optional(folder / GENERATION).items():
        if name in SUPPRESSED and isinstance(value, list):
            value = [token for token in value if token not in never_generated]
        if value is not None and value != NEUTRAL.get(name, value):
            settings.append(f"{name} = {brief(value)}")
    return tuple(settings)


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
