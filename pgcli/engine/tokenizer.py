"""Encode prompts as token ids, and decode generated ids into spans of an answer.

B rows · T prompt tokens
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from pgcli.checkpoints.tokenizer import has_conversations, open_tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.records import Span

NEWLINE = "\n"
BLANK = "\u2581"
LOCATIONS = 1024
MASK_CODES = 128
# Gemma's control tokens, whether or not a tokenizer flags them as special
CONTROL = re.compile(
    r"<(?:pad|eos|bos|unk|mask|image|2mass|start_of_turn|end_of_turn|unused\d+|loc\d{4}|seg\d{3})>"
    r"|\[@BOS@\]"
)


class Tokenizer:
    """A checkpoint's tokenizer, with the ids that prompts and answers consist of.

    PaliGemma's prompts follow the image and end in a newline. With `image_marks`, the tokens around
    an image, prompts are Gemma 3's, which knows no locations: plain text, or with `has_turns` a
    turn of a conversation.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        image_marks: tuple[int, int] | None = None,
        *,
        has_turns: bool = False,
    ):
        self._tokenizer, self._image_marks = tokenizer, image_marks
        self.bos = self.id("<bos>")
        self.newline = self.id(NEWLINE)
        self.locations = self.mask_codes = range(0)
        if image_marks is None:
            self.locations = self._run("<loc{:04d}>", LOCATIONS)
            self.mask_codes = self._run("<seg{:03d}>", MASK_CODES)
        self.start_of_turn = self.id("<start_of_turn>") if has_turns else None
        self.end_of_turn = self.id("<end_of_turn>") if has_turns else None
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder().values()
        specials = [re.escape(token.content) for token in added if token.special]
        self._control = re.compile("|".join([CONTROL.pattern, *specials]))
        self._has_warned = False
        self._for_matchers: Any = None

    @classmethod
    def from_folder(cls, folder: Path, image_marks: tuple[int, int] | None = None) -> Tokenizer:
        """The tokenizer of a checkpoint; InvalidCheckpoint if it is not the model's."""
        has_turns = image_marks is not None and has_conversations(folder)
        return cls(open_tokenizer(folder), image_marks, has_turns=has_turns)

    def encode_head(self, system: str | None = None) -> tuple[int, ...]:
        """The ids before the image, the same for all prompts of a run; none for PaliGemma.

        `system` is a text that opens the conversation. Newlines beside the image's own are one
        token, as transformers tokenizes the whole prompt.
        """
        if self._image_marks is None:
            return ()
        text, opening = "\n\n", [self.bos]
        if self.start_of_turn is not None:
            opening.append(self.start_of_turn)
            text = f"user\n{'' if system is None else system + NEWLINE * 2}{text}"
        return (*opening, *self.encode_text(text), self._image_marks[0])

    def _encode_tail(self, text: str) -> list[int]:
        """The ids after the image of a prompt without locations."""
        assert self._image_marks is not None
        ids = [self._image_marks[1], *self.encode_text(f"\n\n{text.strip()}")]
        if self.start_of_turn is not None and self.end_of_turn is not None:
            ids += [self.end_of_turn, self.newline]
            ids += [self.start_of_turn, *self._encode("model\n")]
        return ids

    def encode_prompt(self, text: str, location_values: Sequence[int] = ()) -> list[int]:
        """The ids after the image. PaliGemma's are bos, the text, and a separate newline token.

        A typed `<image>` or `<loc0001>` is encoded as ordinary characters, not as the token.
        `location_values` (0..1023) are appended after a blank as location tokens, as in
        `caption <loc0000><loc0000><loc1023><loc1023>`. Warns of the first prompt that begins with
        a token.
        """
        typed = self._control.match(text.lstrip())
        if typed is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a prompt begins with {typed[0]}, which pgcli reads as text: remove it; pgcli "
                "adds the tokens that the model needs",
                stacklevel=1,
            )
        if self._image_marks is not None:
            return self._encode_tail(text)
        if not location_values:
            return [self.bos, *self.encode_text(text.strip()), self.newline]
        locations = [self.locations[value] for value in location_values]
        return [self.bos, *self.encode_text(f"{text.strip()} ".lstrip()), *locations, self.newline]

    def encode_text(self, text: str) -> list[int]:
        """The ids of user text, without control, location and mask tokens."""
        ids: list[int] = []
        start = 0
        for match in self._control.finditer(text):
            cut = match.start() + 1  # within the token's text, so that neither half is a token
            ids += self._encode(text[start:cut])
            start = cut
        return ids + self._encode(text[start:])

    def encode_answer(self, text: str) -> list[int]:
        """The ids of a training answer; `<loc0001>` and `<seg001>` are encoded as tokens."""
        return self._encode(text)

    def token_text(self, token: int) -> str:
        """The text of one token, with its leading blank; bytes of a character are `<0xE2>`."""
        return (self._tokenizer.id_to_token(token) or "").replace(BLANK, " ")

    def decode(
        self,
        ids: Sequence[int],
        probabilities: Sequence[float],
        near_probabilities: Sequence[float] | None = None,
    ) -> list[Span]:
        """A generated answer as spans: one per location or mask token, and the text between.

        `near_probabilities` are the probabilities of all locations near each one.
        """
        known: Sequence[float | None] = near_probabilities or [None] * len(ids)
        tokens = list(zip(ids, probabilities, known, strict=True))
        return [
            span
            for kind, run in groupby(tokens, key=lambda token: self._kind(token[0]))
            for span in self._spans(kind, list(run))
        ]

    def for_matchers(self, stop_tokens: tuple[int, ...]) -> Any:
        """The tokenizer as llguidance's, made once; these tokens end an answer."""
        from llguidance import LLTokenizer

        if self._for_matchers is None:
            text = self._tokenizer.to_str()
            self._for_matchers = LLTokenizer(text, n_vocab=self.size, eos_token=[*stop_tokens])
        return self._for_matchers

    def _spans(self, kind: str, tokens: list[tuple[int, float, float | None]]) -> Iterator[Span]:
        if kind == "location":
            for token, probability, near in tokens:
                value = token - self.locations.start
                yield Span("location", f"<loc{value:04d}>", value, probability, near)
        elif kind == "mask":
            for token, probability, _ in tokens:
                value = token - self.mask_codes.start
                yield Span("mask", f"<seg{value:03d}>", value, probability)
        else:
            ids = [token for token, *_ in tokens]
            yield Span("text", self._tokenizer.decode(ids, skip_special_tokens=True))

    def _kind(self, token: int) -> str:
        if token in self.locations:
            return "location"
        return "mask" if token in self.mask_codes else "text"

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def id(self, token: str) -> int:
        """The id of a token; InvalidCheckpoint if the tokenizer does not have it."""
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise InvalidCheckpoint(f"tokenizer.json has no token {token!r}; it is not the model's")
        return int(token_id)

    def _run(self, name: str, count: int) -> range:
        """The ids of numbered tokens, which must be consecutive."""
        first = self.id(name.format(0))
        for number in range(count):
            if self.id(name.format(number)) != first + number:
                raise InvalidCheckpoint(f"tokenizer.json: {name.format(number)} is out of order")
        return range(first, first + count)


def left_pad(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Left-padded ids (B, T) of prompts of any lengths, and a mask (B, T) that is True on tokens.

    The mask is None if all prompts have the same length.

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
