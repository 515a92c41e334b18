"""Opens a checkpoint's tokenizer: `tokenizer.json`, or a converted SentencePiece model.

Tokenizers whose files could make a text take any amount of memory or time are refused: nothing
interrupts the tokenizers library, so its steps are those of the tokenizers of Gemma, SigLIP, CLIP
and BERT, and each adds a bounded number of characters or tokens to a text.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from pgcli.checkpoints.files import (
    SENTENCEPIECE,
    TOKEN_NAMES,
    TOKENIZER,
    open_model_file,
    read_object,
    read_optional,
)
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import TextConfig
from pgcli.text import decode_text, printable

#: The tokenizer of a checkpoint, in order of preference.
FILES = (TOKENIZER, *SENTENCEPIECE[:2])
MAX_BYTES = 64 * 2**20  # Gemma's tokenizer.json has 17 MB, its SentencePiece model 4 MB
CLIP_BOS, CLIP_EOS = "<|startoftext|>", "<|endoftext|>"
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType in SentencePiece's protocol
CONTROL = 3  # SentencePiece.Type
NEVER = -1e9  # the score of pieces that no text contains
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


def convert_sentencepiece(file: Path, data: bytes) -> Tokenizer:
    """The tokenizer of the bytes of `tokenizer.model` (Gemma's) or `spiece.model` (SigLIP's).

    Raises InvalidCheckpoint for a file that is not such a model, and if the packages that read it
    are not installed.
    """
    model = _parse(file, data)
    pieces = [piece.piece for piece in model.pieces]
    check_pieces(file, pieces)
    check_charsmap(file, model.normalizer_spec.precompiled_charsmap)
    kind = model.trainer_spec.model_type
    if file.name == "spiece.model":
        problems = {
            "it is truncated, or not a unigram model": kind != UNIGRAM,
            "it has no unknown token": not 0 <= model.trainer_spec.unk_id < len(pieces),
        }
    else:
        problems = {
            "it is truncated, or not a byte-pair encoding": kind != BPE,
            "it has no byte fallback": not model.trainer_spec.byte_fallback,
            "it rewrites characters": bool(model.normalizer_spec.precompiled_charsmap),
            "a piece is repeated": len(set(pieces)) < len(pieces),
        }
    for problem, is_found in problems.items():
        if is_found:
            raise InvalidCheckpoint(
                f"{file} is not a tokenizer of Gemma's or SigLIP's kind: {problem}",
                hint="save the processor again with transformers: save_pretrained writes "
                "tokenizer.json",
            )
    if kind == UNIGRAM:
        return _from_unigram(model)
    tokenizer = _from_bpe(file, data)
    _add_tokens(tokenizer, file.parent)
    return tokenizer


def _parse(file: Path, data: bytes) -> Any:
    """The model as a message of SentencePiece's protocol."""
    try:
        model: Any = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    except ImportError as error:
        raise InvalidCheckpoint(
            f"{file.parent} has no tokenizer.json, and converting its {file.name} needs "
            f"sentencepiece and protobuf: {error}",
            hint="pip install 'paligemma-cli[sentencepiece]'",
        ) from error
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own class, from a package that is optional
        raise InvalidCheckpoint(
            f"{file} is not a SentencePiece model: {error}", hint="download the model again"
        ) from error
    return model


def _from_bpe(file: Path, data: bytes) -> Tokenizer:
    """The tokenizer that transformers converts from a copy of the file in an empty folder.

    There it cannot read the checkpoint's settings.
    """
    from transformers import GemmaTokenizer

    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / file.name).write_bytes(data)
        try:
            converted = GemmaTokenizer.from_pretrained(empty, local_files_only=True)
        except Exception as error:  # tokenizers raises a bare Exception
            raise InvalidCheckpoint(f"{file} cannot be converted: {error}") from error
    tokenizer: Tokenizer = converted.backend_tokenizer
    return tokenizer


def _from_unigram(model: Any) -> Tokenizer:
    """The tokenizer with the pieces, scores and normalization of the model.

    transformers has no conversion of SigLIP's.
    """
    pieces = [
        (piece.piece, NEVER if piece.type == CONTROL else piece.score) for piece in model.pieces
    ]
    trainer, charsmap = model.trainer_spec, model.normalizer_spec.precompiled_charsmap
    tokenizer = Tokenizer(
        models.Unigram(pieces, unk_id=trainer.unk_id, byte_fallback=trainer.byte_fallback)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Strip(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the tokens of the checkpoint's JSON files. Raises InvalidCheckpoint for other ids."""
    added = _added_tokens(folder)
    check_pieces(folder, [token.content for token in added.values()])
    tokenizer.add_tokens([added[token_id] for token_id in sorted(added)])
    for token_id, token in added.items():
        if tokenizer.token_to_id(token.content) != token_id:
            raise InvalidCheckpoint(
                f"{folder}: the token {token.content!r} has the id "
                f"{tokenizer.token_to_id(token.content)}, not {token_id}"
            )


def _added_tokens(folder: Path) -> dict[int, AddedToken]:
    """The added tokens by id; `tokenizer_config.json` overrides `added_tokens.json`."""
    settings = read_optional(folder / "tokenizer_config.json")
    older = read_optional(folder / "special_tokens_map.json")
    specials = [*_special_tokens(settings), *_special_tokens(older)]
    added = {
        token_id: AddedToken(content, normalized=False, special=content in specials)
        for content, token_id in read_optional(folder / "added_tokens.json").items()
        if type(token_id) is int
    }
    decoder = settings.get("added_tokens_decoder")
    for token_id, token in decoder.items() if isinstance(decoder, dict) else ():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not re.fullmatch("[0-9]{1,9}", token_id):
            raise InvalidCheckpoint(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has {brief(token_id)}"
            )
        names = ("special", "normalized", "lstrip", "rstrip", "single_word")
        flags = {name: token.get(name) is True for name in names}
        added[int(token_id)] = AddedToken(content, **flags)
    return added


def _special_tokens(settings: dict[str, Any]) -> list[Any]:
    listed = settings.get("additional_special_tokens")
    tokens = listed if isinstance(listed, list) else []
    return [token.get("content") if isinstance(token, dict) else token for token in tokens]


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
