"""What is learned of an image: the text in a column, a label, or the answer to a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

from pgcli.errors import UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.paths import display_name
from pgcli.records import Item

#: The columns of result files that say why an image has no answer.
ERROR_COLUMNS = ("error", "error_message")
HINT = "correct the manifest, or name another column"


class TrainingTarget(NamedTuple):
    """A text, a label, or the answer to a prompt."""

    text: str
    prompt: str = ""


#: Finds the target of an item; None if it has none.
FindTarget = Callable[[Item], TrainingTarget | None]


class Targets(Protocol):
    """How the targets of rows are found."""

    @property
    def name(self) -> str:
        """What a row without a target lacks, for messages."""

    @property
    def hint(self) -> str:
        """What to do where no row has a target."""

    def open(self, name: str, options: ReadOptions) -> tuple[Iterable[Item], FindTarget]:
        """The items of a source, and what finds the target of each. Raises UsageError."""


@dataclass(frozen=True)
class ColumnTargets:
    """The text or number in a column of a manifest."""

    column: str

    @property
    def name(self) -> str:
        return repr(self.column)

    @property
    def hint(self) -> str:
        return HINT

    def open(self, name: str, options: ReadOptions) -> tuple[Iterable[Item], FindTarget]:
        read = replace(options, fields=(self.column,), repeats_ids=True, allows_nulls=True)
        return Inventory.scan([name], read), self.find

    def find(self, item: Item) -> TrainingTarget | None:
        """The value of the column, if it is a text or a number."""
        text = text_of(item.fields.get(self.column))
        return TrainingTarget(text) if text else None


@dataclass(frozen=True)
class LabelTargets(ColumnTargets):
    """The label in a column of a manifest, or the name of the folder right below the source."""

    def open(self, name: str, options: ReadOptions) -> tuple[Iterable[Item], FindTarget]:
        source = Inventory.scan([name], replace(options, repeats_ids=True))
        if source.has_columns:
            return super().open(name, options)
        if not source.is_folder:
            raise UsageError(
                f"{display_name(name)} is not a folder, and labels are the names of folders in one",
                hint="name the folder that has a folder of each label, or a manifest with a "
                f"column {self.column!r}",
            )
        return source, lambda item: self.folder_of(item, name)

    def folder_of(self, item: Item, source: str) -> TrainingTarget:
        """The folder of an image. Raises UsageError if it is in the source itself."""
        parts = PurePosixPath(item.id).parts
        if len(parts) < 2:
            raise UsageError(
                f"{item.id} is in {source} itself, and labels are the names of folders in it",
                hint="move it into a folder of its label, or name a manifest with a column "
                f"{self.column!r}",
            )
        return TrainingTarget(parts[0])


def is_error_row(item: Item) -> bool:
    """Whether an item is a row of a result file that has an error in place of an answer."""
    fields = item.fields
    return all(name in fields for name in ERROR_COLUMNS) and fields["error"] is not None


def text_of(value: Any) -> str:
    """A text or a number as text without outer blanks; empty for anything else."""
    return "" if value is None or isinstance(value, list | dict) else str(value).strip()
