"""A checkpoint's tokenizer: `tokenizer.json`, or the SentencePiece model that it stands for."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from tokenizers import AddedToken, Tokenizer

from pgcli.checkpoints.json_file import read_json
from pgcli.errors import InvalidCheckpoint

MAX_BYTES = 64 * 2**20  # Gemma's has 17 million, and its SentencePiece model 4 million
MAX_PIECES = 2**20
MAX_PIECE_LENGTH = 256  # the time that merges take to find grows with its square
MAX_GROWTH = 64
BPE = 2  # TrainerSpec.ModelType in SentencePiece's protocol


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, which neither cuts nor pads what it encodes.

    Raises InvalidCheckpoint where there is none, where it is broken, or where a SentencePiece
    model is all there is and the packages that convert it are not installed.
    """
    if (folder / "tokenizer.json").is_file():
        tokenizer = _from_json(folder / "tokenizer.json")
    elif (folder / "tokenizer.model").is_file():
        tokenizer = _from_sentencepiece(folder / "tokenizer.model")
        _add_tokens(tokenizer, folder)
    else:
        raise InvalidCheckpoint(
            f"{folder} has no tokenizer.json, and no tokenizer.model either",
            hint="save the processor again with transformers: save_pretrained writes it",
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        tokenizer.encode("a \U0010ffff", add_special_tokens=False)
    except BaseException as error:  # some that are read as sound fail at their first word
        raise _refused(error, f"the tokenizer of {folder} cannot encode") from error
    return tokenizer


def _refused(error: BaseException, message: str) -> BaseException:
    """The refusal where tokenizers failed, by a bare Exception or by a panic, which is not one."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return InvalidCheckpoint(f"{message}: {error}")
    return error


def _from_json(file: Path) -> Tokenizer:
    _insist_on_size(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except BaseException as error:
        raise _refused(error, f"{file} is no tokenizer") from error
    _insist_on_plain_steps(file, tokenizer)
    return tokenizer


def _insist_on_plain_steps(file: Path, tokenizer: Tokenizer) -> None:
    """Refuse steps around the model that could keep it busy for hours, or fill the memory.

    Gemma's replace a blank by a mark and cut at blanks; expressions match in any time.
    """
    if getattr(tokenizer.model, "dropout", None):
        raise InvalidCheckpoint(f"{file} leaves out merges at random, as Gemma's do not")
    steps = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
    for step in steps:
        described = json.loads(step.__getstate__()) if step is not None else {}
        if '"Regex"' in json.dumps(described):
            raise InvalidCheckpoint(f"{file} cuts or replaces by an expression, as Gemma's do not")
        if _growth(described) > MAX_GROWTH:
            raise InvalidCheckpoint(f"{file} replaces text by far more text, as Gemma's do not")


def _growth(step: Any) -> int:
    """How many times as long a text may become in this step and those in it."""
    if isinstance(step, list):
        return min(prod(map(_growth, step)), MAX_GROWTH + 1)
    if not isinstance(step, dict):
        return 1
    inserted = (step.get(name) for name in ("content", "prepend"))
    longest = max((len(text) for text in inserted if isinstance(text, str)), default=1)
    return max(1, longest) * prod(_growth(value) for value in step.values())


def _insist_on_size(file: Path) -> None:
    if file.stat().st_size > MAX_BYTES:
        raise InvalidCheckpoint(f"{file} is larger than {MAX_BYTES} bytes")


def _from_sentencepiece(file: Path) -> Tokenizer:
    """What transformers makes of a SentencePiece model in Gemma's form.

    transformers sees the model alone, in a folder of its own, and none of the settings beside it.
    """
    _insist_on_size(file)
    missing = [name for name in ("sentencepiece", "google.protobuf") if not _is_installed(name)]
    if missing:
        raise InvalidCheckpoint(
            f"{file.parent} has no tokenizer.json, and converting its tokenizer.model needs "
            + " and ".join(missing),
            hint="pip install sentencepiece protobuf",
        )
    _insist_on_gemma(file)
    from transformers import GemmaTokenizer

    with tempfile.TemporaryDirectory() as alone:
        shutil.copyfile(file, Path(alone) / file.name)
        try:
            converted = GemmaTokenizer.from_pretrained(alone, local_files_only=True)
        except Exception as error:  # tokenizers raises it bare
            raise InvalidCheckpoint(f"{file} cannot be converted: {error}") from error
    tokenizer: Tokenizer = converted.backend_tokenizer
    return tokenizer


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def _insist_on_gemma(file: Path) -> None:
    """Refuse what is no SentencePiece model, and one that a Gemma tokenizer would read otherwise.

    transformers takes any file that it cannot parse for one of another library's.
    """
    model: Any = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's own error, from a package that need not be there
        raise InvalidCheckpoint(
            f"{file} is no SentencePiece model: {error}", hint="download the model again"
        ) from error
    pieces, kind = [piece.piece for piece in model.pieces], model.trainer_spec.model_type
    reasons = {
        "it has no pieces": not pieces,
        "it is cut short, or no byte-pair encoding": kind != BPE,
        "it has no byte fallback": not model.trainer_spec.byte_fallback,
        "it rewrites characters": bool(model.normalizer_spec.precompiled_charsmap),
        "it has too many pieces": len(pieces) > MAX_PIECES,
        "a piece is too long": max(map(len, pieces), default=0) > MAX_PIECE_LENGTH,
        "a piece is there twice": len(set(pieces)) < len(pieces),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidCheckpoint(
                f"{file} is no tokenizer in Gemma's form: {reason}",
                hint="save the processor again with transformers: save_pretrained writes "
                "tokenizer.json",
            )


def _add_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the tokens that the files beside the model name, each in its place."""
    added = _added(folder)
    tokenizer.add_tokens([added[place] for place in sorted(added)])
    for place, token in added.items():
        if tokenizer.token_to_id(token.content) != place:
            raise InvalidCheckpoint(
                f"{folder}: the token {token.content!r} is said to be {place}, and it is "
                f"{tokenizer.token_to_id(token.content)}"
            )


def _added(folder: Path) -> dict[int, AddedToken]:
    """The added tokens by their places; transformers' settings win over the older file."""
    settings = _optional(folder / "tokenizer_config.json")
    specials = [*_specials(settings), *_specials(_optional(folder / "special_tokens_map.json"))]
    added = {
        place: AddedToken(content, normalized=False, special=content in specials)
        for content, place in _optional(folder / "added_tokens.json").items()
        if type(place) is int
    }
    described = settings.get("added_tokens_decoder")
    for place, token in described.items() if isinstance(described, dict) else ():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not re.fullmatch("[0-9]{1,9}", place):
            raise InvalidCheckpoint(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has {brief(place)}"
            )
        flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
        said = {flag: token.get(flag) is True for flag in flags}
        added[int(place)] = AddedToken(content, **said)
    return added


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _specials(settings: dict[str, Any]) -> list[Any]:
    named = settings.get("additional_special_tokens")
    tokens = named if isinstance(named, list) else []
    return [token.get("content") if isinstance(token, dict) else token for token in tokens]
