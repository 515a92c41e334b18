"""ColPali: PaliGemma with one more matrix, which makes a vector of each slot, in three layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pgcli.checkpoints.families import ConfigReader, Family, TensorNames
from pgcli.checkpoints.families.gemma3 import GEMMA3_NAMES
from pgcli.checkpoints.families.paligemma import NAMES as PALIGEMMA
from pgcli.checkpoints.families.paligemma import parse_config
from pgcli.model.config import PaliGemmaConfig

VECTOR_SIZE = 128
#: The LM head of the model that it was made of.
_UNUSED = r"(?:^|\.)lm_head\."


def _names(projection: str, outer: str) -> TensorNames:
    """The names of PaliGemma below a module, and the projection's."""
    below = ((f"{outer}.{name}", own) for name, own in PALIGEMMA.prefixes)
    return TensorNames(((f"{projection}.", "vectors."), *below), unused=_UNUSED)


#: colpali-engine's names: of base models, of merged ones, and below `base_model` of adapters.
ENGINE_NAMES = _names("custom_text_proj", "model")
#: transformers' names.
HF_NAMES = _names("embedding_proj_layer", "vlm")
#: The names of the weights of every model that an adapter may change.
ADAPTED_NAMES = TensorNames(
    (*ENGINE_NAMES.prefixes, *HF_NAMES.prefixes, *GEMMA3_NAMES.prefixes),
)


def parse_engine_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The sizes of a model that colpali-engine saved: its `config.json` is PaliGemma's."""
    return replace(parse_config(values), vector_size=VECTOR_SIZE)


def parse_hf_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The sizes of a model that transformers saved: `vlm_config` is PaliGemma's `config.json`."""
    keys = ConfigReader("", values)
    keys.expect("model_type", "colpali")
    config = parse_config(ConfigReader("vlm_config", keys.pop("vlm_config")).values)
    keys.finish()
    return replace(config, vector_size=keys.integer("embedding_dim", VECTOR_SIZE, high=1 << 12))


COLPALI = Family("multi_vector", HF_NAMES, parse_hf_config)
#: Its `config.json` has PaliGemma's `model_type`, and the architecture ColPali.
COLPALI_ENGINE = Family("multi_vector", ENGINE_NAMES, parse_engine_config)
