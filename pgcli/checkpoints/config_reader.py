"""Reads one level of a `config.json` so that no setting is ignored silently."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from reprlib import repr as brief
from typing import Any

# Keys that do not change an answer: bookkeeping, training, and implementation choices.
HARMLESS_KEYS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _name_or_path
    _vocab_size architectures attention_dropout auto_map bos_token_id cache_implementation
    chunk_size_feed_forward dtype gradient_checkpointing id2label ignore_index initializer_factor
    initializer_range is_encoder_decoder label2id num_image_tokens num_positions
    output_attentions output_hidden_states pad_token_id problem_type projector_hidden_act
    return_dict torch_dtype transformers_version use_cache vocab_size
    """.split()
)
# Keys that transformers reads at any level, outside its configuration classes.
LOADING_KEYS = frozenset({"quantization_config", "compression_config", "rope_scaling"})


class ConfigReader:
    """One level of the configuration. Every key is read once; `finish` checks the others.

    `known` are the keys of transformers' class for this level. A key that is neither read here nor
    harmless is an error if it is among them, and otherwise ignored with a warning. If `known` is
    None, every such key is an error.
    """

    def __init__(self, level: str, values: Any, known: Collection[str] | None = None):
        if not isinstance(values, Mapping):
            problem = "missing" if values is None else "not an object"
            raise ValueError(f"{level or 'config.json'} is {problem}")
        self.level = level
        self.known = known
        self.values = dict(values)
        self.given = frozenset(key for key, value in values.items() if value is not None)

    def name(self, key: str) -> str:
        """The key with its level, as in `text_config.head_dim`."""
        return f"{self.level}.{key}" if self.level else key

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove the key and return its value; the default if it is absent or null."""
        value = self.values.pop(key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, high: int = 1 << 20) -> int:
        value = self.pop(key, default)
        if value is None:
            raise ValueError(f"{self.name(key)} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise ValueError(
                f"{self.name(key)} is {brief(value)}, not a whole number from 1 to {high}"
            )
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a number")
        if not 0 < value <= sys.float_info.max:  # also False for NaN
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a positive number")
        return float(value)

    def positive_or_none(self, key: str, default: float | None) -> float | None:
        """A positive number; None if the key is null, the default only if it is absent."""
        if (key in self.values and self.values[key] is None) or default is None:
            return None if self.values.get(key) is None else self.positive(key, 1.0)
        return self.positive(key, default)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.pop(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.name(key)} is {brief(value)}, not true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them."""
        value = self.pop(key, [])
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 31:
                raise ValueError(
                    f"{self.name(key)} is {brief(value)}, not a token id or a list of them"
                )
        return tuple(ids)

    def fraction(self, key: str, default: float) -> float:
        """A number from 0 to below 1."""
        value = self.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a number from 0 to below 1")
        return float(value)

    def discard(self, keys: Collection[str]) -> None:
        """Remove keys that do not matter at this level."""
        for key in keys:
            self.values.pop(key, None)

    def expect(self, key: str, *allowed: Any) -> None:
        """Raise ValueError unless the key is absent, null or one of the allowed values."""
        value = self.pop(key)
        if value is not None and value not in allowed:
            supported = ", ".join(map(repr, allowed)) or "none"
            raise ValueError(f"{self.name(key)} is {brief(value)}; supported: {supported}")

    def finish(self) -> None:
        """Raise ValueError for an unsupported setting, and warn of keys that are ignored."""
        rest = {
            key: value
            for key, value in self.values.items()
            if value is not None and key not in HARMLESS_KEYS
        }
        for key, value in rest.items():
            if self.known is None or key in LOADING_KEYS or key in self.known:
                raise ValueError(f"{self.name(key)} = {brief(value)} is not supported")
        for key in rest:
            warn_ignored(self.name(key))


@cache  # one run reads the file several times
def warn_ignored(name: str) -> None:
    warnings.warn(
        f"config.json: {brief(name)} is not a setting that transformers or pgcli knows, "
        "and it is ignored",
        stacklevel=1,
    )
