"""The truth of a file, by id and prompt, and the columns it is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgcli.evaluation.joined_row import RowTruth

Key = tuple[str, str | None]
MAX_VALUE_CHARACTERS = 200  # of a value that rows are grouped by


@dataclass(frozen=True)
class TruthColumns:
    """The names of columns, as the command line gives them.

    With an empty prompt column, rows are joined by id alone.
    """

    id: str = "id"
    prompt: str | None = None
    answer: str | None = None


@dataclass
class Truths:
    """The truth by id and prompt. `columns` are those of the file.

    Rows are joined by their prompts as well where `has_prompts` is true. `class_names` are those of
    columns whose integers stand for classes.
    """

    name: str
    by_key: dict[Key, RowTruth] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    has_prompts: bool = False
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, key: Key, truth: RowTruth) -> None:
        """Add what is true; rows of the same id and prompt, as captions of an image, are joined."""
        known = self.by_key.get(key)
        self.by_key[key] = truth if known is None else merged(known, truth)


def merged(first: RowTruth, second: RowTruth) -> RowTruth:
    """Both truths in one."""

    def both(values: Any, more: Any) -> Any:
        return more if values is None else values if more is None else (*values, *more)

    return RowTruth(
        first.answers + second.answers,
        both(first.boxes, second.boxes),
        both(first.masks, second.masks),
        first.box_areas + second.box_areas,
        first.crowds + second.crowds,
        {**second.columns, **first.columns},
    )


def group_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that rows can be grouped by; a long text is cut."""
    return {
        name: value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value
        for name, value in row.items()
        if isinstance(value, str | int | float | bool)
    }
