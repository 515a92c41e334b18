"""Opens a checkpoint's tokenizer: `tokenizer.json`, or a converted SentencePiece model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pgcli.checkpoints.files import open_model_file, read_object
from pgcli.checkpoints.sentencepiece_model import convert_sentencepiece
from pgcli.checkpoints.tokenizer_limits import check_tokenizer
from pgcli.checkpoints.weight_files import SENTENCEPIECE, TOKEN_NAMES, TOKENIZER
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import TextConfig
from pgcli.text import decode_text

#: The tokenizer of a checkpoint, in order of preference.
FILES = (TOKENIZER, *SENTENCEPIECE[:2])
MAX_BYTES = 64 * 2**20  # Gemma's tokenizer.json has 17 MB, its SentencePiece model 4 MB
CLIP_BOS, CLIP_EOS = "<|startoftext|>", "<|endoftext|>"


def has_tokenizer(folder: Path) -> bool:
    """Whether a checkpoint has a tokenizer file; embedding images needs none."""
    return any(os.path.lexists(folder / name) for name in FILES)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without truncation or padding.

    Raises InvalidCheckpoint for a missing or broken tokenizer, and for a SentencePiece model whose
    converter is not installed.
    """
    for name in FILES:
        if os.path.lexists(folder / name):
            break
    else:
        raise InvalidCheckpoint(
            f"{folder} has no tokenizer.json, and no tokenizer.model either",
            hint="save the processor again with transformers: save_pretrained writes it",
        )
    file = folder / name
    with open_model_file(file) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidCheckpoint(f"{file} is larger than {MAX_BYTES} bytes")
    try:
        convert = _from_json if name == TOKENIZER else convert_sentencepiece
        tokenizer = convert(file, data)
    except InvalidCheckpoint:
        raise
    except BaseException as error:
        raise _translated(error, f"{file} is not a tokenizer") from error
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # splits at random, for training the same text differently
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        tokenizer.encode("a \U0010ffff", add_special_tokens=False)
    except BaseException as error:  # some broken tokenizers fail only when they encode
        raise _translated(error, f"the tokenizer of {folder} cannot encode") from error
    return tokenizer


def _from_json(file: Path, data: bytes) -> Tokenizer:
    text = decode_text(data)
    check_tokenizer(file, text)
    return Tokenizer.from_str(text)


def _translated(error: BaseException, message: str) -> BaseException:
    """An InvalidCheckpoint for errors of tokenizers: a bare Exception, or a Rust panic."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return InvalidCheckpoint(f"{message}: {error}")
    return error


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A text tower's tokenizer, and the ids of its control tokens; CLIP's texts have a `bos`.

    `is_gemma` marks SigLIP 2, which has Gemma's tokenizer. `adds_eos` says whether the checkpoint's
    files end texts with `eos`, as in the training of the towers.
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

    def token_id(names: Sequence[str]) -> int:
        for name in names:
            number = tokenizer.token_to_id(name)
            if number is not None:
                return int(number)
        raise InvalidCheckpoint(
            f"the tokenizer of {folder} has no token {' or '.join(map(repr, names))}; it "
            "belongs neither to SigLIP nor to CLIP"
        )

    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > config.vocab_size:
        raise InvalidCheckpoint(
            f"{folder}: the tokenizer has {size} tokens, the model {config.vocab_size}"
        )
    pad = _setting(folder, "pad_token")
    eos = token_id([CLIP_EOS] if config.causal else ["</s>", "<eos>"])
    is_gemma = not config.causal and tokenizer.token_to_id("<eos>") == eos
    if config.causal and config.eos_token not in (None, eos):
        raise InvalidCheckpoint(
            f"{folder}: the tokenizer ends texts with token {eos}, the model with "
            f"{config.eos_token}"
        )
    adds_eos = _setting(folder, "add_eos_token") is True
    return TextTokenizer(
        tokenizer,
        bos=token_id([CLIP_BOS]) if config.causal else None,
        eos=eos,
        pad=token_id([pad]) if isinstance(pad, str) else token_id(["<pad>"]) if is_gemma else eos,
        is_gemma=is_gemma,
        adds_eos=adds_eos or tokenizer.encode("a").ids[-1:] == [eos],
    )


def _setting(folder: Path, name: str) -> Any:
    """A control token or a setting that the checkpoint's files name, or None."""
    for file in TOKEN_NAMES:
        value: Any = read_object(folder / file).get(name) if (folder / file).is_file() else None
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None:
            return value
    return None
