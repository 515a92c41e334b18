"""Refuses tokenizers whose files could make a text take any amount of memory or time.

Nothing interrupts the tokenizers library. So its steps are those of the tokenizers of Gemma,
SigLIP, CLIP and BERT, and each adds a bounded number of characters or tokens to a text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pgcli.errors import InvalidCheckpoint
from pgcli.text import printable

#: The parts of tokenizer.json: the key of a sequence of steps, and the kinds of steps.
PARTS = {
    "normalizer": (
        "normalizers",
        "NFC NFD NFKC NFKD Nmt Lowercase Strip StripAccents BertNormalizer Precompiled Replace",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel Digits Metaspace Punctuation Split Whitespace WhitespaceSplit",
    ),
    "post_processor": (
        "processors",
        "BertProcessing ByteLevel RobertaProcessing TemplateProcessing",
    ),
    "decoder": (
        "decoders",
        "ByteFallback ByteLevel Fuse Metaspace Replace WordPiece",
    ),
}
MAX_STEPS = 16  # of a part
MAX_STEP_CHARACTERS = 2000  # as JSON; CLIP's longest has 200, a template of Gemma's 400
MAX_PIECE = 256  # characters; Gemma's longest has 31
MAX_VOCABULARY = 2**22  # characters of all pieces: Gemma's have 1.4 million
MAX_AFFIX = 64  # characters of the texts that a model adds to words
MAX_WORD = 1000  # characters of a word, whose pieces are found in quadratic time
MAX_REPLACEMENT = 64  # bytes for one character; NFKC has 33
_ATOM = r"(?:\\[^AbBGKyYzZ](?:\{[a-zA-Z_]\w*\})?|\[(?:\\[\s\S]|[^\]\\\[])*\]|[^\\\[\](){}*+?|.^$])"
_ALTERNATIVE = rf"{_ATOM}+(?:\+|\{{[1-9]\d*,\}})?"
#: Alternatives of characters and their classes, of which only the last may repeat: linear time.
#: None matches without a character, as `\b` does.
SIMPLE_REGEX = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*")


def check_tokenizer(file: Path, text: str) -> None:
    """Raise InvalidCheckpoint if the text of a tokenizer.json exceeds a limit."""
    values = json.loads(text, object_pairs_hook=_unique)
    for part, (key, kinds) in PARTS.items():
        step = values.get(part)
        is_sequence = step is not None and step["type"] == "Sequence"
        steps = step[key] if is_sequence else [step] if step is not None else []
        if len(steps) > MAX_STEPS:
            raise InvalidCheckpoint(f"{file} has {len(steps)} steps in its {part}")
        for step in steps:
            name = printable(str(step["type"])[:MAX_AFFIX])
            if step["type"] not in kinds.split():
                raise InvalidCheckpoint(
                    f"{file} has the {part} {name}, which Gemma's, SigLIP's, CLIP's and BERT's "
                    "tokenizers do not have"
                )
            if "precompiled_charsmap" in step:
                check_charsmap(file, base64.b64decode(step["precompiled_charsmap"]))
            for problem in _problems(step):
                raise InvalidCheckpoint(f"{file} has the {part} {name} {problem}")
    model, added = values["model"], values.get("added_tokens") or ()
    vocab = model["vocab"]
    pieces = vocab if isinstance(vocab, dict) else [piece for piece, _ in vocab]
    check_pieces(file, [*pieces, *(token["content"] for token in added)])
    affixes = [value for value in model.values() if isinstance(value, str)]
    if max(map(len, affixes), default=0) > MAX_AFFIX:
        raise InvalidCheckpoint(f"{file} has a model that adds long texts to words")
    if model.get("max_input_chars_per_word", 0) > MAX_WORD:
        raise InvalidCheckpoint(f"{file} has a model for words of over {MAX_WORD} characters")


def check_pieces(file: Path, pieces: Collection[str]) -> None:
    """Raise InvalidCheckpoint if a piece is too long, or if all are."""
    if max(map(len, pieces), default=0) > MAX_PIECE or sum(map(len, pieces)) > MAX_VOCABULARY:
        raise InvalidCheckpoint(
            f"{file} has a token of over {MAX_PIECE} characters, or {MAX_VOCABULARY} in all tokens"
        )


def check_charsmap(file: Path, charsmap: bytes) -> None:
    """Raise InvalidCheckpoint if SentencePiece's table replaces a character by a long text."""
    trie = 4 + int.from_bytes(charsmap[:4], "little")
    if max(map(len, charsmap[trie:].split(b"\0"))) > MAX_REPLACEMENT:
        raise InvalidCheckpoint(f"{file} replaces a character by over {MAX_REPLACEMENT} bytes")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a repeated key is an error, since programs differ in which value they read."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is repeated")
    return values


def _problems(step: dict[str, Any]) -> Iterator[str]:
    """What exceeds a limit in a step of an allowed kind."""
    if len(json.dumps(step | {"precompiled_charsmap": None})) > MAX_STEP_CHARACTERS:
        yield f"of over {MAX_STEP_CHARACTERS} characters"
    pattern = step.get("pattern") or {}
    if "Regex" in pattern and not SIMPLE_REGEX.fullmatch(pattern["Regex"]):
        yield "with a regular expression that may be slow"
    shortest = 1 if "Regex" in pattern else len(pattern.get("String", ""))
    if step["type"] == "Replace" and not len(step["content"]) <= shortest != 0:
        yield "that makes texts longer"
    for name, most in (("single", 1), ("pair", 2)):
        if sum("Sequence" in piece for piece in step.get(name, ())) > most:
            yield "that repeats texts"
