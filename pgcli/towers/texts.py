"""Texts as the token ids that a text tower was trained on.

B texts · T tokens
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tokenizers
import torch
from torch import Tensor

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The length of a text tower's inputs, and the tokens around a text.

    `clean` is applied to texts first. `adds_eos` says whether the checkpoint's own tokenizer adds
    `eos`; pgcli always does.
    """

    length: int
    bos: int | None
    eos: int
    pad: int
    clean: Callable[[str], str]
    adds_eos: bool = True


class TextProcessor:
    """Encodes texts, always padded on the right to the text tower's full length.

    SigLIP attends to the padding and pools the last position, so both are part of its input.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, format: TextFormat):
        self._tokenizer = tokenizer
        self.format = format
        # a literal <|endoftext|> is text; as a token, it would end the text there
        tokenizer.encode_special_tokens = True

    def __call__(self, texts: Iterable[str], *, raw: bool = False) -> Tensor:
        """The ids (B, T) of texts; longer ones are truncated before their end token.

        With `raw`, texts go to the tokenizer unchanged.
        """
        ids = [self._padded(ids) for ids in self._encode(texts, raw)]
        return torch.tensor(ids, dtype=torch.long).view(-1, self.format.length)

    def truncated(self, texts: Sequence[str], *, raw: bool = False) -> frozenset[str]:
        """The texts that are longer than the text tower's input and so truncated."""
        pairs = zip(texts, self._encode(texts, raw), strict=True)
        return frozenset(text for text, ids in pairs if len(ids) > self._room)

    @property
    def _room(self) -> int:
        """The number of a text's tokens, without the start and end tokens."""
        return self.format.length - (self.format.bos is not None) - 1

    def _encode(self, texts: Iterable[str], raw: bool) -> list[list[int]]:
        wanted = texts if raw else map(self.format.clean, texts)
        encoded = self._tokenizer.encode_batch([*wanted], add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def _padded(self, ids: Sequence[int]) -> list[int]:
        format = self.format
        start = [] if format.bos is None else [format.bos]
        kept = [*start, *ids[: self._room], format.eos]
        return kept + [format.pad] * (format.length - len(kept))


def as_typed(text: str) -> str:
    """The text unchanged: CLIP's tokenizer lower-cases it."""
    return text


def siglip_text(text: str) -> str:
    """Lower case without punctuation and repeated whitespace, as in transformers' SigLIP."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def canonical_text(text: str) -> str:
    """`siglip_text` with spaces for underscores, as for SigLIP in big_vision."""
    return siglip_text(text.replace("_", " "))
