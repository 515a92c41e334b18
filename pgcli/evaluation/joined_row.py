"""A row of results beside the truth about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgcli.iou import area
from pgcli.records import Box, Rle


@dataclass(frozen=True, slots=True)
class RowTruth:
    """What is true of an image and a prompt.

    `boxes` and `masks` are None where the truth does not say anything about boxes or masks; a mask
    may be None as well. `areas` are those of the objects in the boxes, where the truth says them,
    and NaN where the size of the image is not known. `crowds` are regions in which boxes are not
    counted. `columns` are the values of the other columns of the truth.
    """

    answers: tuple[str, ...] = ()
    boxes: tuple[Box, ...] | None = None
    masks: tuple[Rle | None, ...] | None = None
    areas: tuple[float, ...] | None = None
    crowds: tuple[Box, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def box_areas(self) -> tuple[float, ...]:
        """The area of each box: of its object, or of the box itself where that is not known."""
        return tuple(map(area, self.boxes or ())) if self.areas is None else self.areas


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
    def answer(self) -> str | None:
        """The answer; None for a missing row and for one with an error."""
        answer = None if self.row is None else self.row.get("answer")
        return answer if isinstance(answer, str) else None
