"""Encode prompts as left-padded ids, and decode generated ids into spans of an answer.

B rows · T prompt tokens
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import tokenizers
import torch
from torch import Tensor

from pgcli.checkpoints.tokenizer import open_tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.records import Span

NEWLINE = "\n"
LOCATIONS = 1024
MASK_CODES = 128
# Gemma's control tokens, whether or not a tokenizer flags them as special
CONTROL = re.compile(
    r"<(?:pad|eos|bos|unk|mask|image|2mass|start_of_turn|end_of_turn|unused\d+|loc\d{4}|seg\d{3})>"
    r"|\[@BOS@\]"
)


class Tokenizer:
    """A checkpoint's tokenizer, with the ids that prompts and answers consist of."""

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        self._tokenizer = tokenizer
        self.bos = self.id("<bos>")
        self.newline = self.id(NEWLINE)
        self.locations = self._run("<loc{:04d}>", LOCATIONS)
        self.mask_codes = self._run("<seg{:03d}>", MASK_CODES)
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder().values()
        specials = [re.escape(token.content) for token in added if token.special]
        self._control = re.compile("|".join([CONTROL.pattern, *specials]))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a checkpoint; InvalidCheckpoint where it is not PaliGemma's."""
        return cls(open_tokenizer(folder))

    def encode_prompt(self, text: str, location_values: Sequence[int] = ()) -> list[int]:
        """A prompt as the model reads it after the image: bos, the text, the newline on its own.

        Text stays text: a typed `<image>` or `<loc0001>` is encoded as ordinary characters, never
        as the token. `location_values` (0..1023) are location tokens that end the prompt after a
        blank, as in `caption <loc0000><loc0000><loc1023><loc1023>`.
        """
        if not location_values:
            return [self.bos, *self.encode_text(text.strip()), self.newline]
        locations = [self.locations[value] for value in location_values]
        return [self.bos, *self.encode_text(f"{text.strip()} ".lstrip()), *locations, self.newline]

    def encode_text(self, text: str) -> list[int]:
        """The ids of user text, in which no control, location or mask token can occur."""
        ids: list[int] = []
        start = 0
        for found in self._control.finditer(text):
            cut = found.start() + 1  # inside the spelled-out token, so that neither half is one
            ids += self._encode(text[start:cut])
            start = cut
        return ids + self._encode(text[start:])

    def encode_answer(self, text: str) -> list[int]:
        """The ids of an answer that a model is to learn: here spelled-out locations are tokens."""
        return self._encode(text)

    def decode(self, ids: Sequence[int], probabilities: Sequence[float]) -> list[Span]:
        """A generated answer as spans: each location or mask token, and the text between."""
        tokens = list(zip(ids, probabilities, strict=True))
        return [
            piece
            for kind, stretch in groupby(tokens, key=lambda token: self._kind(token[0]))
            for piece in self._stretch(kind, list(stretch))
        ]

    def _stretch(self, kind: str, tokens: list[tuple[int, float]]) -> Iterator[Span]:
        if kind == "location":
            for token, probability in tokens:
                value = token - self.locations.start
                yield Span("location", f"<loc{value:04d}>", value, probability)
        elif kind == "mask":
            for token, probability in tokens:
                value = token - self.mask_codes.start
                yield Span("mask", f"<seg{value:03d}>", value, probability)
        else:
            ids = [token for token, _ in tokens]
            yield Span("text", self._tokenizer.decode(ids, skip_special_tokens=True))

    def _kind(self, token: int) -> str:
        if token in self.locations:
            return "location"
        return "mask" if token in self.mask_codes else "text"

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def id(self, token: str) -> int:
        """The id of a token by its spelling; InvalidCheckpoint where there is none."""
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise InvalidCheckpoint(f"tokenizer.json has no token {token!r}; it is not PaliGemma's")
        return int(found)

    def _run(self, name: str, count: int) -> range:
        """The ids of a numbered family of tokens, which must follow one another."""
        first = self.id(name.format(0))
        for number in range(count):
            if self.id(name.format(number)) != first + number:
                raise InvalidCheckpoint(
                    f"tokenizer.json: {name.format(number)} is out of its order"
                )
        return range(first, first + count)


def left_pad(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Prompts of any lengths as (B, T) ids ending in the same column, and where they are real.

    The second is None where all are equally long: then nothing needs a mask.

        # # #      bos a \\n
        . # #      bos \\n
    """
    longest = max(map(len, prompts))
    token_BT = torch.zeros(len(prompts), longest, dtype=torch.long)
    is_real_BT = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for row, ids in enumerate(prompts):
        token_BT[row, longest - len(ids) :] = torch.tensor(ids)
        is_real_BT[row, longest - len(ids) :] = True
    return token_BT, None if bool(is_real_BT.all()) else is_real_BT
