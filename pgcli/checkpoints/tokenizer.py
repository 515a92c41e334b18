"""Opens a checkpoint's tokenizer: `tokenizer.json`, or a converted SentencePiece model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pgcli.checkpoints.files import open_model_file
from pgcli.checkpoints.sentencepiece_model import add_tokens, from_sentencepiece
from pgcli.checkpoints.unigram_model import from_unigram
from pgcli.errors import InvalidCheckpoint

MAX_BYTES = 64 * 2**20  # Gemma's tokenizer.json has 17 MB, its SentencePiece model 4 MB
MAX_GROWTH = 64
STEPS = ("normalizer", "pre_tokenizer", "decoder")
#: A token that is normalized while the tokenizer is built, or the key in letters that are escaped.
NORMALIZED = re.compile(rb'"normalized"\s*:\s*true|\\u00[67]')
_ATOM = r"(?:\\[\s\S](?:\{\w+\})?|\[(?:\\[\s\S]|[^\]\\\[])*\]|[^\\\[\](){}*+?|.^$])"
_ALTERNATIVE = rf"{_ATOM}+(?:\+|\{{\d+,\}})?"
#: Alternatives of characters and their classes, of which only the last may repeat: linear time.
SIMPLE_REGEX = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*")


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without truncation or padding.

    Raises InvalidCheckpoint if there is none, if it is broken, or if there is only a SentencePiece
    model and the packages that convert it are not installed.
    """
    json_file, model_file = folder / "tokenizer.json", folder / "tokenizer.model"
    siglip_file = folder / "spiece.model"
    if os.path.lexists(json_file):
        tokenizer = _from_json(json_file, _read(json_file))
    elif os.path.lexists(model_file):
        tokenizer = from_sentencepiece(model_file, _read(model_file))
        add_tokens(tokenizer, folder)
    elif os.path.lexists(siglip_file):
        tokenizer = from_unigram(siglip_file, _read(siglip_file))
    else:
        raise InvalidCheckpoint(
            f"{folder} has no tokenizer.json, and no tokenizer.model either",
            hint="save the processor again with transformers: save_pretrained writes it",
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        tokenizer.encode("a \U0010ffff", add_special_tokens=False)
    except BaseException as error:  # some broken tokenizers fail only when they encode
        raise _translated(error, f"the tokenizer of {folder} cannot encode") from error
    return tokenizer


def _translated(error: BaseException, message: str) -> BaseException:
    """An InvalidCheckpoint for errors of tokenizers: a bare Exception, or a Rust panic."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return InvalidCheckpoint(f"{message}: {error}")
    return error


def _read(file: Path) -> bytes:
    with open_model_file(file) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidCheckpoint(f"{file} is larger than {MAX_BYTES} bytes")
    return data


def _from_json(file: Path, data: bytes) -> Tokenizer:
    try:
        if NORMALIZED.search(data):  # of large vocabularies, reading all of it takes a second
            values = json.loads(data)
            _check_steps(file, [values.get(name) for name in STEPS])
        tokenizer = Tokenizer.from_buffer(data)
    except InvalidCheckpoint:
        raise
    except BaseException as error:
        raise _translated(error, f"{file} is not a tokenizer") from error
    if getattr(tokenizer.model, "dropout", None):
        raise InvalidCheckpoint(f"{file} uses dropout of merges, unlike Gemma's tokenizer")
    steps = filter(None, (getattr(tokenizer, name) for name in STEPS))
    _check_steps(file, [json.loads(step.__getstate__()) for step in steps])
    return tokenizer


def _check_steps(file: Path, steps: Sequence[Any]) -> None:
    """Raise InvalidCheckpoint for a step that could take hours or fill the memory.

    Gemma's steps replace a space and split at spaces. Regular expressions can take any time,
    unless they are as simple as CLIP's and SigLIP's.
    """
    for settings in steps:
        if not all(map(SIMPLE_REGEX.fullmatch, _regexes(settings))):
            raise InvalidCheckpoint(f"{file} uses a regular expression, unlike Gemma's tokenizer")
        if _max_growth(settings) > MAX_GROWTH:
            raise InvalidCheckpoint(
                f"{file} replaces text by much longer text, unlike Gemma's tokenizer"
            )


def _regexes(step: Any) -> list[str]:
    """The regular expressions of this step and its parts."""
    parts = step.values() if isinstance(step, dict) else step if isinstance(step, list) else ()
    own = [step["Regex"]] if isinstance(step, dict) and isinstance(step.get("Regex"), str) else []
    return own + [regex for part in parts for regex in _regexes(part)]


def _max_growth(step: Any) -> int:
    """The largest factor by which this step and its parts can lengthen a text."""
    if isinstance(step, list):
        return min(prod(map(_max_growth, step)), MAX_GROWTH + 1)
    if not isinstance(step, dict):
        return 1
    inserted = (step.get(name) for name in ("content", "prepend"))
    longest = max((len(text) for text in inserted if isinstance(text, str)), default=1)
    return max(1, longest) * prod(_max_growth(value) for value in step.values())
