"""The truth of a file, by id and prompt, and the columns it is read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pgcli.evaluation.joined_row import RowTruth

Key = tuple[str, str | None]
#: Columns of every result file, by which it is known.
RESULT_COLUMNS = frozenset({"index", "id", "model", "error", "error_message"})


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

    @property
    def are_results(self) -> bool:
        """Whether the file is a result file, as a person has corrected it."""
        return self.columns.keys() >= RESULT_COLUMNS

    def add(self, key: Key, truth: RowTruth) -> None:
        """Add what is true; rows of the same id and prompt, as captions of an image, are joined."""
        known = self.by_key.get(key)
        self.by_key[key] = truth if known is None else merged(known, truth)


def merged(one: RowTruth, other: RowTruth) -> RowTruth:
    """Both truths in one."""

    def both(first: Any, second: Any) -> Any:
        return second if first is None else first if second is None else (*first, *second)

    return RowTruth(
        one.answers + other.answers,
        both(one.boxes, other.boxes),
        both(one.masks, other.masks),
        one.box_areas + other.box_areas,
        one.crowds + other.crowds,
        {**other.columns, **one.columns},
    )
