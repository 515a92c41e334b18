"""A row of results beside the truth about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgcli.boxes import box_area
from pgcli.records import Box, Rle

#: The columns of the truth and of rows that name an image; VQA's files have the first.
IMAGE_COLUMNS = ("image_id", "image")


@dataclass(frozen=True, slots=True)
class RowTruth:
    """What is true of an image and a prompt.

    `boxes` and `masks` are None where the truth does not say anything about boxes or masks; a mask
    may be None as well. `areas` are those of the objects in the boxes, where the truth says them,
    and NaN where the size of the image is not known. `crowds` are regions in which boxes are not
    counted. `columns` are the values of the other columns of the truth; those that rows of the same
    image and prompt do not agree on are a tuple of them. Location tokens in `box_texts`, answers of
    rows without other boxes, are boxes once the size of the image is known. `size` is the width and
    height that is stated with boxes and masks, None where none is.
    """

    answers: tuple[str, ...] = ()
    boxes: tuple[Box, ...] | None = None
    masks: tuple[Rle | None, ...] | None = None
    areas: tuple[float, ...] | None = None
    crowds: tuple[Box, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    box_texts: tuple[str, ...] = ()
    size: tuple[int, int] | None = None

    @property
    def has_regions(self) -> bool:
        """Whether there is something in pixels."""
        return bool(self.boxes or self.crowds or any(self.masks or ()))

    @property
    def box_areas(self) -> tuple[float, ...]:
        """The area of each box: of its object, or of the box itself where that is not known."""
        return tuple(map(box_area, self.boxes or ())) if self.areas is None else self.areas


@dataclass(frozen=True, slots=True)
class JoinedRow:
    """A row of results and its truth, of which one may be None: a missing or a surplus row.

    `prompt` is that of the row, or of the truth of a missing one, and `task` what it asks for.
    `boxes` and `masks` are those of the row; empty if it has none, or is missing.
    """

    id: str
    prompt: str | None
    row: Mapping[str, Any] | None
    truth: RowTruth | None
    boxes: tuple[Box, ...] = ()
    masks: tuple[Rle | None, ...] = ()
    task: str = ""

    @property
    def key(self) -> tuple[str, str | None]:
        """The id and the prompt."""
        return self.id, self.prompt

    @property
    def image(self) -> str:
        """What names the image, which several rows may be about: the id where nothing else does."""
        columns = self.truth.columns if self.truth is not None else {}
        for values in (columns, self.row or {}):
            for name in IMAGE_COLUMNS:
                value = values.get(name)
                if value not in (None, ""):
                    return str(value[0] if isinstance(value, tuple) else value)
        return self.id

    @property
    def answer(self) -> str | None:
        """The answer; None for a missing row and for one with an error."""
        answer = None if self.row is None else self.row.get("answer")
        return answer if isinstance(answer, str) else None

    @property
    def true_answers(self) -> tuple[str, ...]:
        """The true answers; none of a surplus row."""
        return () if self.truth is None else self.truth.answers

    @property
    def true_boxes(self) -> tuple[Box, ...]:
        """The true boxes; none of a surplus row."""
        return () if self.truth is None else self.truth.boxes or ()

    def best(self, similarity: Callable[[str, str], float]) -> float:
        """The highest similarity of the answer and a true one; 0 without an answer or a truth."""
        if self.answer is None:
            return 0.0
        return max((similarity(self.answer, truth) for truth in self.true_answers), default=0.0)
