"""Reads the tokenizer of a text tower, and the tokens that begin, end and pad its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.tokenizer import open_tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import TextConfig

CLIP_BOS, CLIP_EOS = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A text tower's tokenizer, and the ids of its control tokens; CLIP's texts have a `bos`.

    With `is_gemma` it is SigLIP 2's, which is Gemma's; else that of SigLIP 1. `adds_eos` says
    whether the checkpoint's files end texts with `eos`, as the towers were trained on.
    """

    tokenizer: Tokenizer
    bos: int | None
    eos: int
    pad: int
    is_gemma: bool
    adds_eos: bool


def open_text_tokenizer(folder: Path, config: TextConfig) -> TextTokenizer:
    """The tokenizer of a folder with a text tower.

    SigLIP pads with its end token `</s>`, SigLIP 2 with Gemma's `<pad>`, and CLIP with its end
    token, unless the checkpoint's files name another one. Raises InvalidCheckpoint for a tokenizer
    that lacks these tokens or has more tokens than the model.
    """
    tokenizer = open_tokenizer(folder)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > config.vocab_size:
        raise InvalidCheckpoint(
            f"{folder}: the tokenizer has {size} tokens, the model {config.vocab_size}"
        )
    if config.causal:
        eos = _id(folder, tokenizer, [CLIP_EOS])
        if config.eos_token not in (None, eos):
            raise InvalidCheckpoint(
                f"{folder}: the tokenizer ends texts with token {eos}, the model with "
                f"{config.eos_token}"
            )
        pad = _named_token(folder, "pad_token")
        return TextTokenizer(
            tokenizer,
            bos=_id(folder, tokenizer, [CLIP_BOS]),
            eos=eos,
            pad=eos if pad is None else _id(folder, tokenizer, [pad]),
            is_gemma=False,
            adds_eos=_adds(folder, tokenizer, eos),
        )
    pad = _named_token(folder, "pad_token")
    eos = _id(folder, tokenizer, ["</s>", "<eos>"])
    is_gemma = tokenizer.token_to_id("<eos>") == eos
    default_pad = "<pad>" if is_gemma else "</s>"
    return TextTokenizer(
        tokenizer,
        bos=None,
        eos=eos,
        pad=_id(folder, tokenizer, [default_pad if pad is None else pad]),
        is_gemma=is_gemma,
        adds_eos=_adds(folder, tokenizer, eos),
    )


def _adds(folder: Path, tokenizer: Tokenizer, eos: int) -> bool:
    """Whether the checkpoint's own tokenizer ends texts with this token."""
    ends = tokenizer.encode("a").ids[-1:] == [eos]
    return ends or _setting(folder / "tokenizer_config.json", "add_eos_token") is True


def _setting(file: Path, name: str) -> Any:
    return read_json(file).get(name) if file.is_file() else None


def _named_token(folder: Path, name: str) -> str | None:
    """A control token that the checkpoint's files name, or None."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        value: Any = _setting(folder / file, name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            return value
    return None


def _id(folder: Path, tokenizer: Tokenizer, names: Sequence[str]) -> int:
    """The id of the first of these tokens that the tokenizer has."""
    for name in names:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise InvalidCheckpoint(
        f"the tokenizer of {folder} has no token {' or '.join(map(repr, names))}; it is not that "
        "of SigLIP or CLIP"
    )
