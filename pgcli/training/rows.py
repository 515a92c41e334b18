"""Lessons -> rows of tokens: several lessons of one picture side by side, and who sees whom.

B rows · P patches · T text tokens · S all slots
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from pgcli.engine.tokens import Vocabulary
from pgcli.training.lessons import Lesson

IGNORED = -100  # a target that no loss looks at, as torch's cross_entropy has it
ANSWER_WEIGHT = 4.0  # a question's one-word answer against a word of a caption


Values = TypeVar("Values")


class Row(NamedTuple, Generic[Values]):
    """Lessons one after another, each `[bos prompt newline answer]`.

    `lesson` numbers them from 1, 0 on padding; `place` counts the tokens of each from 1. `target`
    is the next token where it belongs to an answer, else IGNORED; `weight` is how much it counts.
    """

    token_T: Values
    lesson_T: Values
    place_T: Values
    is_prefix_T: Values
    target_T: Values
    weight_T: Values


def pack(
    lessons: Sequence[Lesson], vocabulary: Vocabulary, *, eos: int, slots: int, most: int
) -> tuple[Row[list[float]], tuple[str, ...]]:
    """The first lessons that fit, `most` of them at most, and their kinds in order."""
    kinds: list[str] = []
    row: Row[list[float]] = Row([], [], [], [], [], [])
    for lesson in lessons:
        prefix = vocabulary.prompt(lesson.prefix)
        answer = [*vocabulary.answer(lesson.suffix), eos]
        asked, length = len(prefix), len(prefix) + len(answer) - 1
        if len(row.token_T) + length > slots or len(kinds) == most:
            continue
        kinds.append(lesson.kind)
        short = lesson.kind not in ("caption", "detect")
        row.token_T.extend([*prefix, *answer[:-1]])
        row.lesson_T.extend([len(kinds)] * length)
        row.place_T.extend(range(1, length + 1))
        row.is_prefix_T.extend([1] * asked + [0] * (length - asked))
        row.target_T.extend([IGNORED] * (asked - 1) + answer)
        row.weight_T.extend([0.0] * (asked - 1) + [ANSWER_WEIGHT if short else 1.0])
        row.weight_T.extend([1.0] * (len(answer) - 1))
    return row, tuple(kinds)


def stack(rows: Sequence[Row[list[float]]], slots: int) -> Row[Tensor]:
    """Rows of any lengths as tensors (B, T), padded at the end."""

    def columns(lists: Sequence[list[float]], dtype: torch.dtype, fill: int = 0) -> Tensor:
        padded = [values + [fill] * (slots - len(values)) for values in lists]
        return torch.tensor(padded, dtype=dtype)

    token, lesson, place, is_prefix, target, weight = zip(*rows, strict=True)
    return Row(
        token_T=columns(token, torch.long),
        lesson_T=columns(lesson, torch.long),
        place_T=columns(place, torch.long),
        is_prefix_T=columns(is_prefix, torch.bool),
        target_T=columns(target, torch.long, IGNORED),
        weight_T=columns(weight, torch.float32),
    )


def who_sees_whom(
    lesson_BT: Tensor, is_prefix_BT: Tensor, *, patches: int, image_sees_prompt: bool
) -> Tensor:
    """The mask (B, 1, S, S) under which the lessons of a row do not know of each other.

    Every slot sees the image; a lesson's tokens see its own prompt whole and its answer's past.
    PaliGemma's image sees the prompt too, which only a row of one lesson can show; with more, the
    image is left to itself, which costs the image's slots once a row instead of once a lesson.
    """
    slots = lesson_BT.shape[1]
    same_BTT = (lesson_BT[:, :, None] == lesson_BT[:, None, :]) & (lesson_BT > 0)[:, None, :]
    earlier_TT = torch.ones(slots, slots, dtype=torch.bool, device=lesson_BT.device).tril()
    text_BTT = same_BTT & (is_prefix_BT[:, None, :] | earlier_TT)
    image_BPT = (is_prefix_BT & image_sees_prompt)[:, None, :].expand(-1, patches, -1)
    right_BST = torch.cat([image_BPT, text_BTT], dim=1)
    left_BSP = right_BST.new_ones(len(lesson_BT), patches + slots, patches)
    return torch.cat([left_BSP, right_BST], dim=2)[:, None]


def positions(place_BT: Tensor, *, patches: int) -> Tensor:
    """Positions (B, S): every lesson's text goes on where the image ends."""
    image_P = torch.arange(1, patches + 1, device=place_BT.device)
    return torch.cat([image_P.expand(len(place_BT), -1), place_BT + patches], dim=1)
