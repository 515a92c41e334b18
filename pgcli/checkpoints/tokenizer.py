"""Opens a checkpoint's tokenizer, `tokenizer.json`, and recognizes its chat template.

Tokenizers whose files could make a text take any amount of memory or time are refused: nothing
interrupts the tokenizers library, so its steps are those of the tokenizers of Gemma, SigLIP, CLIP
and BERT, and each adds a bounded number of characters or tokens to a text.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from pgcli.checkpoints.files import (
    CHAT_TEMPLATES,
    TOKEN_NAMES,
    TOKENIZER,
    open_model_file,
    read_object,
)
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import TextConfig
from pgcli.stores.files import read_text
from pgcli.text import decode_text, printable

MAX_BYTES = 64 * 2**20  # Gemma's tokenizer.json has 17 MB
CLIP_BOS, CLIP_EOS = "<|startoftext|>", "<|endoftext|>"
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


def has_tokenizer(folder: Path) -> bool:
    """Whether a checkpoint has a tokenizer file; embedding images needs none."""
    return os.path.lexists(folder / TOKENIZER)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without truncation or padding.

    Raises InvalidCheckpoint for a missing or broken tokenizer.
    """
    file = folder / TOKENIZER
    if not has_tokenizer(folder):
        raise InvalidCheckpoint(
            f"{folder} has no {TOKENIZER}",
            hint="save the processor again with transformers: save_pretrained writes it",
        )
    with open_model_file(file) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidCheckpoint(f"{file} is larger than {MAX_BYTES} bytes")
    try:
        text = decode_text(data)
        check_tokenizer(file, text)
        tokenizer = Tokenizer.from_str(text)
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


MAX_TEMPLATE_CHARACTERS = 2**14
_PROBE = [
    {"role": "system", "content": [{"type": "text", "text": "s\n"}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " t "}]},
]
_RENDERED = (
    "<bos><start_of_turn>user\ns\n\n\n<start_of_image>t<end_of_turn>\n<start_of_turn>model\n"
)


def has_conversations(folder: Path) -> bool:
    """Whether prompts are turns of a conversation: checkpoints without a template take plain text.

    The template is rendered once, in Jinja's sandbox, for a conversation with an image. Raises
    InvalidCheckpoint for a template that makes other text of it.
    """
    template = _read_template(folder)
    if template is None:
        return False
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    try:
        rendered = environment.from_string(template[:MAX_TEMPLATE_CHARACTERS]).render(
            messages=_PROBE, bos_token="<bos>", eos_token="<eos>", add_generation_prompt=True
        )
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as e:
        raise _unsupported_template(folder) from e
    if rendered != _RENDERED:
        raise _unsupported_template(folder)
    return True


def _read_template(folder: Path) -> str | None:
    """The template in the first of the files that has one, as transformers reads them."""
    jinja, in_json = CHAT_TEMPLATES
    if (folder / jinja).is_file():
        return read_text(folder / jinja)
    for name in (in_json, TOKEN_NAMES[0]):
        values: dict[str, Any] = read_object(folder / name) if (folder / name).is_file() else {}
        template = values.get("chat_template")
        if template is not None:
            if not isinstance(template, str):
                raise _unsupported_template(folder)
            return template
    return None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _unsupported_template(folder: Path) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"the chat template of {folder} is not Gemma 3's",
        hint="name Google's checkpoint, or one that was trained with its template",
    )
