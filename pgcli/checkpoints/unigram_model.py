"""Converts a SentencePiece unigram model, as SigLIP's, into a tokenizer."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from pgcli.checkpoints.sentencepiece_model import MAX_PIECE_LENGTH, MAX_PIECES, parse_sentencepiece
from pgcli.errors import InvalidCheckpoint

UNIGRAM, CONTROL = 1, 3  # ModelType and Type in SentencePiece's protocol
NEVER = -1e9  # the score of pieces that no text contains


def from_unigram(file: Path, data: bytes) -> Tokenizer:
    """The tokenizer with the pieces, scores and normalization of the bytes of the model file.

    Raises InvalidCheckpoint for a file that is not such a model, or if the packages that read it
    are not installed.
    """
    model = parse_sentencepiece(file, data)
    pieces = [
        (piece.piece, NEVER if piece.type == CONTROL else piece.score) for piece in model.pieces
    ]
    problems = {
        "it has no pieces": not pieces,
        "it is cut short, or not a unigram model": model.trainer_spec.model_type != UNIGRAM,
        "it has too many pieces": len(pieces) > MAX_PIECES,
        "a piece is too long": max((len(text) for text, _ in pieces), default=0) > MAX_PIECE_LENGTH,
        "it has no unknown token": not 0 <= model.trainer_spec.unk_id < len(pieces),
    }
    for problem, is_found in problems.items():
        if is_found:
            raise InvalidCheckpoint(f"{file} is not a tokenizer of SigLIP's kind: {problem}")
    tokenizer = Tokenizer(
        models.Unigram(
            pieces, unk_id=model.trainer_spec.unk_id, byte_fallback=model.trainer_spec.byte_fallback
        )
    )
    charsmap = model.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Strip(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer
