"""Lessons -> rows of tokens: several lessons of one picture side by side, and who sees whom.

B rows · P patches · T text tokens · S all slots
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.engine.tokens import Vocabulary
from pgcli.training.lessons import Lesson

IGNORED = -100  # a target that no loss looks at, as torch's cross_entropy has it
ANSWER_WEIGHT = 4.0  # a question's one-word answer against a word of a caption


class Row(NamedTuple):
    """Lessons one after another, each `[bos prompt newline answer]`, padded at the end.

    `lesson` numbers them from 1, 0 on padding; `place` counts the tokens of each from 1. `target`
    is the next token where it belongs to an answer, else IGNORED; `weight` is how much it counts.
    """

    token_T: Tensor
    lesson_T: Tensor
    place_T: Tensor
    is_prefix_T: Tensor
    target_T: Tensor
    weight_T: Tensor


def pack(
    lessons: Sequence[Lesson], vocabulary: Vocabulary, *, eos: int, slots: int, most: int
) -> tuple[Row, tuple[str, ...]]:
    """The first lessons that fit, `most` of them at most, and their kinds in order."""
    row = Row(
        token_T=torch.zeros(slots, dtype=torch.long),
        lesson_T=torch.zeros(slots, dtype=torch.long),
        place_T=torch.zeros(slots, dtype=torch.long),
        is_prefix_T=torch.zeros(slots, dtype=torch.bool),
        target_T=torch.full((slots,), IGNORED),
        weight_T=torch.zeros(slots),
    )
    kinds: list[str] = []
    start = 0
    for lesson in lessons:
        prefix = vocabulary.prompt(lesson.prefix)
        answer = [*vocabulary.answer(lesson.suffix), eos]
        end = start + len(prefix) + len(answer) - 1
        if end > slots or len(kinds) == most:
            continue
        answers = slice(start + len(prefix) - 1, end)
        kinds.append(lesson.kind)
        row.token_T[start:end] = torch.tensor([*prefix, *answer[:-1]])
        row.lesson_T[start:end] = len(kinds)
        row.place_T[start:end] = torch.arange(1, end - start + 1)
        row.is_prefix_T[start : start + len(prefix)] = True
        row.target_T[answers] = torch.tensor(answer)
        row.weight_T[answers] = 1.0
        if lesson.kind not in ("caption", "detect"):
            row.weight_T[answers.start] = ANSWER_WEIGHT
        start = end
    return row, tuple(kinds)


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
