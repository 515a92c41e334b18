"""Texts as the token ids that a text tower was trained on.

B texts · T tokens
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tokenizers
import torch
from torch import Tensor

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The length of a text tower's inputs, and the tokens around a text.

    With `canonical`, texts are lower-cased and stripped of punctuation, as SigLIP was trained.
    """

    length: int
    bos: int | None
    eos: int
    pad: int
    canonical: bool


class TextProcessor:
    """Encodes texts, always padded on the right to the text tower's full length.

    SigLIP attends to the padding and pools the last position, so both are part of its input.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, format: TextFormat):
        self._tokenizer = tokenizer
        self.format = format
        # a typed <|endoftext|> is text; as a token, it would end the text there
        tokenizer.encode_special_tokens = True

    def __call__(self, texts: Iterable[str], *, raw: bool = False) -> Tensor:
        """The ids (B, T) of texts; longer ones are cut before their end token.

        With `raw`, the tokenizer gets texts as they are.
        """
        wanted = texts if raw or not self.format.canonical else map(canonical_text, texts)
        encoded = self._tokenizer.encode_batch([*wanted], add_special_tokens=False)
        return torch.tensor([self._padded(one.ids) for one in encoded]).view(-1, self.format.length)

    def _padded(self, ids: Sequence[int]) -> list[int]:
        format = self.format
        start = [] if format.bos is None else [format.bos]
        kept = [*start, *ids[: format.length - len(start) - 1], format.eos]
        return kept + [format.pad] * (format.length - len(kept))


def canonical_text(text: str) -> str:
    """The text in lower case, without punctuation and repeated blanks, as big_vision has it."""
    return re.sub(r"\s+", " ", text.lower().translate(_NO_PUNCTUATION)).strip()
