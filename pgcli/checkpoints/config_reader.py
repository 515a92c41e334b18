"""One level of a `config.json`, read so strictly that no setting is passed over in silence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

# Keys that do not change an answer: bookkeeping, training, and implementation choices.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _name_or_path
    _vocab_size architectures attention_dropout auto_map bos_token_id cache_implementation
    chunk_size_feed_forward dtype gradient_checkpointing id2label ignore_index initializer_factor
    initializer_range is_encoder_decoder label2id num_image_tokens num_positions
    output_attentions output_hidden_states pad_token_id problem_type projector_hidden_act
    return_dict torch_dtype transformers_version use_cache vocab_size
    """.split()
)


class ConfigReader:
    """One level of the configuration: each key is read once, and what is left must be harmless."""

    def __init__(self, level: str, values: Any):
        if not isinstance(values, Mapping):
            problem = "missing" if values is None else "not an object"
            raise ValueError(f"{level or 'config.json'} is {problem}")
        self.level = level
        self.values = dict(values)
        self.given = frozenset(key for key, value in values.items() if value is not None)

    def name(self, key: str) -> str:
        return f"{self.level}.{key}" if self.level else key

    def take(self, key: str, default: Any = None) -> Any:
        value = self.values.pop(key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, high: int = 1 << 20) -> int:
        value = self.take(key, default)
        if value is None:
            raise ValueError(f"{self.name(key)} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise ValueError(
                f"{self.name(key)} is {brief(value)}, not a whole number from 1 to {high}"
            )
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a number")
        if not 0 < value <= sys.float_info.max:  # NaN is neither
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a positive number")
        return float(value)

    def positive_or_none(self, key: str, default: float | None) -> float | None:
        """A positive number; a null says that there is none, where an absent key says nothing."""
        if (key in self.values and self.values[key] is None) or default is None:
            return None if self.values.get(key) is None else self.positive(key, 1.0)
        return self.positive(key, default)

    def claim(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.name(key)} is {brief(value)}, not true or false")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them."""
        value = self.take(key, [])
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 31:
                raise ValueError(
                    f"{self.name(key)} is {brief(value)}, not a token id or a list of them"
                )
        return tuple(ids)

    def only(self, key: str, *allowed: Any) -> None:
        """Accept the key where it is absent, null or one of the allowed values."""
        value = self.take(key)
        if value is not None and value not in allowed:
            supported = ", ".join(map(repr, allowed)) or "none"
            raise ValueError(f"{self.name(key)} is {brief(value)}; supported: {supported}")

    def close(self) -> None:
        """Refuse, by name, a setting that this code does not know."""
        for key, value in self.values.items():
            if key not in HARMLESS and value is not None:
                raise ValueError(
                    f"{self.name(key)} = {brief(value)} is a setting unknown to this code"
                )
