"""Reads the `config.json` of SigLIP, CLIP and image classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.tower_config import EARLIER_KEYS, Family, read_text, read_vision
from pgcli.model.config import ClassifierConfig, TwoTowersConfig

FAMILIES: Mapping[str, Family] = {
    "siglip": "siglip",
    "siglip_vision_model": "siglip",
    "clip": "clip",
    "vit": "vit",
}
#: Keys at the top level that do not change an embedding.
TOP_KEYS = frozenset({"logit_scale_init_value"})


def parse_two_towers(values: Mapping[str, Any]) -> TwoTowersConfig:
    """The sizes of SigLIP, SigLIP's vision tower on its own, or CLIP.

    Raises ValueError with the key's name for a setting that is not supported.
    """
    keys = ConfigReader("", values)
    kind = keys.pop("model_type")
    if kind == "siglip_vision_model":
        vision = read_vision(keys, "siglip")
        return TwoTowersConfig("siglip", vision, text=None, embedding_dim=vision.width)
    if kind not in ("siglip", "clip"):
        raise ValueError(f"model_type is {brief(kind)}; supported: 'siglip', 'clip'")
    family: Family = kind
    keys.discard(TOP_KEYS | EARLIER_KEYS)
    vision = read_vision(_level(keys, "vision_config"), family)
    text_keys = _level(keys, "text_config")
    width = text_keys.values.get("projection_size") if family == "siglip" else None
    text = read_text(text_keys, family)
    projection = keys.pop("projection_dim", 512 if family == "clip" else None)
    embedding_dim = projection or width or text.width
    if isinstance(embedding_dim, bool) or not isinstance(embedding_dim, int) or embedding_dim < 1:
        raise ValueError(f"the size of embeddings is {brief(embedding_dim)}")
    if family == "siglip" and embedding_dim != vision.width:
        raise ValueError(
            f"texts have embeddings of {embedding_dim} values, images of {vision.width}"
        )
    loss = keys.pop("contrastive_loss", "sigmoid")  # CLIP's towers have no bias in any case
    keys.finish()
    return TwoTowersConfig(kind, vision, text, embedding_dim, has_sigmoid=loss == "sigmoid")


def parse_classifier(values: Mapping[str, Any]) -> ClassifierConfig:
    """The sizes and labels of ViT, SigLIP or CLIP with a classification head.

    Raises ValueError with the key's name for a setting that is not supported.
    """
    keys = ConfigReader("", values)
    kind = keys.pop("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"model_type is {brief(kind)}; supported: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    labels = _labels(keys.values.get("id2label"))
    if "vision_config" not in keys.values:
        keys.discard({"pooler_act", "pooler_output_size"})
        return ClassifierConfig(family, read_vision(keys, family), labels)
    keys.discard(TOP_KEYS | EARLIER_KEYS | {"text_config", "text_config_dict", "projection_dim"})
    vision = read_vision(_level(keys, "vision_config"), family)
    keys.finish()
    return ClassifierConfig(family, vision, labels)


def _level(keys: ConfigReader, name: str) -> ConfigReader:
    # where CLIP's first configurations have both, transformers takes the dict
    values, override = keys.pop(name, {}), keys.pop(f"{name}_dict")
    level = ConfigReader(name, values if override is None else override)
    level.pop("model_type")
    return level


def _labels(id2label: Any) -> tuple[str, ...]:
    """The labels in the order of their ids; transformers assumes two without names."""
    if id2label is None:
        return "LABEL_0", "LABEL_1"
    is_complete = isinstance(id2label, dict) and sorted(map(str, id2label)) == sorted(
        map(str, range(len(id2label)))
    )
    if not is_complete or not all(isinstance(label, str) for label in id2label.values()):
        raise ValueError("id2label does not name the classes 0, 1, 2, ...")
    by_id = {int(number): label for number, label in id2label.items()}
    return tuple(by_id[number] for number in range(len(by_id)))
