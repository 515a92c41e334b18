"""Converts a SentencePiece model into a tokenizer: Gemma's by transformers, and SigLIP's."""

from __future__ import annotations

import re
import tempfile
from importlib import import_module
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from pgcli.checkpoints.files import read_optional
from pgcli.checkpoints.tokenizer_limits import check_charsmap, check_pieces
from pgcli.errors import InvalidCheckpoint

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType in SentencePiece's protocol
CONTROL = 3  # SentencePiece.Type
NEVER = -1e9  # the score of pieces that no text contains


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
