"""Reads `generation_config.json`: the stop tokens, and settings that are not followed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.weight_files import GENERATION

#: Settings that change transformers' greedy answers, unless they are null or have this value.
NEUTRAL: Mapping[str, Any] = {
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "constraints": None,
    "diversity_penalty": 0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "penalty_alpha": None,
    "repetition_penalty": 1,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": [],
    "token_healing": False,
    "watermarking_config": None,
}
#: Of these the tokens that no answer contains have no effect.
SUPPRESSED = ("begin_suppress_tokens", "suppress_tokens")


def read_stop_tokens(folder: Path) -> tuple[int, ...]:
    """The stop tokens of `generation_config.json`; none where it names none or does not exist.

    Raises InvalidCheckpoint for a file that is not a JSON object, and ValueError for values that
    are not token ids.
    """
    values = _read(folder)
    return tuple(dict.fromkeys(ConfigReader(GENERATION, values).token_ids("eos_token_id")))


def settings_not_followed(folder: Path, *, never_generated: Collection[int]) -> tuple[str, ...]:
    """`name = value` of each setting that changes transformers' greedy answers, but not pgcli's.

    The tokens that are `never_generated` may be suppressed.
    """
    return tuple(_not_followed(_read(folder), never_generated))


def _read(folder: Path) -> dict[str, Any]:
    file = folder / GENERATION
    return read_json(file) if file.exists() else {}


def _not_followed(values: Mapping[str, Any], never_generated: Collection[int]) -> Iterator[str]:
    for name, neutral in NEUTRAL.items():
        value = values.get(name)
        if name in SUPPRESSED and isinstance(value, list):
            value = [token for token in value if token not in never_generated]
        if value is not None and value != neutral:
            yield f"{name} = {brief(value)}"


@cache  # one run reads the file several times
def warn_not_followed(settings: tuple[str, ...]) -> None:
    """Warn of settings of a checkpoint that are not followed."""
    warnings.warn(
        f"{GENERATION}: transformers' greedy answers follow {', '.join(settings)}, "
        "and pgcli's do not",
        stacklevel=1,
    )
