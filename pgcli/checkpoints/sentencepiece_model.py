"""Converts a SentencePiece model of Gemma's kind into a tokenizer."""

from __future__ import annotations

import os
import re
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from tokenizers import AddedToken, Tokenizer

from pgcli.checkpoints.files import read_json
from pgcli.errors import InvalidCheckpoint

MAX_PIECES = 2**20
MAX_PIECE_LENGTH = 256  # finding the merges of a piece takes time quadratic in its length
BPE = 2  # TrainerSpec.ModelType in SentencePiece's protocol


def from_sentencepiece(file: Path, data: bytes) -> Tokenizer:
    """The tokenizer that transformers converts from the bytes of the model file.

    transformers gets a copy in an empty folder, so that it reads none of the checkpoint's settings.
    """
    _check_model(file, data)
    from transformers import GemmaTokenizer

    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / file.name).write_bytes(data)
        try:
            converted = GemmaTokenizer.from_pretrained(empty, local_files_only=True)
        except Exception as error:  # tokenizers raises a bare Exception
            raise InvalidCheckpoint(f"{file} cannot be converted: {error}") from error
    tokenizer: Tokenizer = converted.backend_tokenizer
    return tokenizer


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def parse_sentencepiece(file: Path, data: bytes) -> Any:
    """The SentencePiece model of a file, as a message of its protocol.

    Raises InvalidCheckpoint if it is none, or if the packages that read it are not installed.
    """
    missing = [name for name in ("sentencepiece", "google.protobuf") if not _is_installed(name)]
    if missing:
        raise InvalidCheckpoint(
            f"{file.parent} has no tokenizer.json, and converting its {file.name} needs "
            + " and ".join(missing),
            hint="pip install sentencepiece protobuf",
        )
    model: Any = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own class, from a package that is optional
        raise InvalidCheckpoint(
            f"{file} is not a SentencePiece model: {error}", hint="download the model again"
        ) from error
    return model


def _check_model(file: Path, data: bytes) -> None:
    """Raise InvalidCheckpoint unless the file is a SentencePiece model that GemmaTokenizer can use.

    transformers takes a file that it cannot parse for a tiktoken file.
    """
    model = parse_sentencepiece(file, data)
    pieces, kind = [piece.piece for piece in model.pieces], model.trainer_spec.model_type
    problems = {
        "it has no pieces": not pieces,
        "it is cut short, or not a byte-pair encoding": kind != BPE,
        "it has no byte fallback": not model.trainer_spec.byte_fallback,
        "it rewrites characters": bool(model.normalizer_spec.precompiled_charsmap),
        "it has too many pieces": len(pieces) > MAX_PIECES,
        "a piece is too long": max(map(len, pieces), default=0) > MAX_PIECE_LENGTH,
        "a piece is repeated": len(set(pieces)) < len(pieces),
    }
    for problem, is_found in problems.items():
        if is_found:
            raise InvalidCheckpoint(
                f"{file} is not a tokenizer of Gemma's kind: {problem}",
                hint="save the processor again with transformers: save_pretrained writes "
                "tokenizer.json",
            )


def add_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the tokens of the checkpoint's JSON files, which must get the ids given there."""
    added = _added_tokens(folder)
    tokenizer.add_tokens([added[token_id] for token_id in sorted(added)])
    for token_id, token in added.items():
        if tokenizer.token_to_id(token.content) != token_id:
            raise InvalidCheckpoint(
                f"{folder}: the token {token.content!r} has the id "
                f"{tokenizer.token_to_id(token.content)}, not {token_id}"
            )


def _added_tokens(folder: Path) -> dict[int, AddedToken]:
    """The added tokens by id; `tokenizer_config.json` overrides `added_tokens.json`."""
    settings = _optional_json(folder / "tokenizer_config.json")
    older = _optional_json(folder / "special_tokens_map.json")
    specials = [*_special_tokens(settings), *_special_tokens(older)]
    added = {
        token_id: AddedToken(content, normalized=False, special=content in specials)
        for content, token_id in _optional_json(folder / "added_tokens.json").items()
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


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if os.path.lexists(file) else {}


def _special_tokens(settings: dict[str, Any]) -> list[Any]:
    listed = settings.get("additional_special_tokens")
    tokens = listed if isinstance(listed, list) else []
    return [token.get("content") if isinstance(token, dict) else token for token in tokens]
