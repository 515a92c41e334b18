"""A row of results beside the truth about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import Box, Rle

#: The columns of the truth and of rows that name an image; VQA's files have the first.
IMAGE_COLUMNS = ("image_id", "image")


@dataclass(frozen=True, slots=True)
class JoinedRow:
    """A row of results and its truth; `row` is None for a missing row, `truth` for a surplus one.

    `prompt` is the row's, or the truth's for a missing row, and `task` the task of the prompt.
    `boxes` and `masks` are the row's; empty for a missing row. Boxes in `row` are objects, too.
    """

    id: str
    prompt: str | None
    row: Mapping[str, Any] | None
    truth: LabelledImage | None
    boxes: tuple[Box, ...] = ()
    masks: tuple[Rle | None, ...] = ()
    task: str = ""

    @property
    def key(self) -> tuple[str, str | None]:
        """The id and the prompt."""
        return self.id, self.prompt

    @property
    def image(self) -> str:
        """The name of the image, which rows may share; the id without another name."""
        columns = self.truth.columns if self.truth is not None else {}
        for values in (columns, self.row or {}):
            for name in IMAGE_COLUMNS:
                value = values.get(name)
                if value not in (None, ""):
                    return str(value[0] if isinstance(value, tuple) else value)
        return self.id

    @property
    def answer(self) -> str | None:
        """The answer; None for missing and failed rows."""
        answer = None if self.row is None else self.row.get("answer")
        return answer if isinstance(answer, str) else None

    @property
    def true_answers(self) -> tuple[str, ...]:
        """The true answers; empty for a surplus row."""
        return () if self.truth is None else self.truth.answers

    @property
    def true_boxes(self) -> tuple[Box, ...]:
        """The true boxes; empty for a surplus row."""
        return () if self.truth is None else self.truth.boxes or ()

    def best(self, similarity: Callable[[str, str], float]) -> float:
        """The highest similarity of the answer and a true one; 0 without an answer or a truth."""
        if self.answer is None:
            return 0.0
        return max((similarity(self.answer, truth) for truth in self.true_answers), default=0.0)
