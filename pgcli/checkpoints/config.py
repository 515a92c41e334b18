"""Reads the sizes and stop tokens of a model that generates text, from its two JSON files."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.families import GENERATING, ConfigReader, family_of
from pgcli.checkpoints.families.paligemma import parse_config
from pgcli.checkpoints.files import CONFIG, GENERATION, read_object, read_optional
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import PaliGemmaConfig

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
