"""What every final form of an output does: it takes rows of open files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pgcli.pipeline.state.open_files import OpenFiles, Segment
from pgcli.pipeline.state.record import RunRecord
from pgcli.rows import RowSchema

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class FormContext:
    """What forms need of a run: its record, rows in open files, columns, kept ones by row range.

    A form that is only read needs the first two.
    """

    record: Callable[[], RunRecord]
    files: OpenFiles
    schema: RowSchema = field(default_factory=RowSchema)
    kept: Callable[[int, int], pyarrow.Table | None] = lambda start, stop: None


class Form(Protocol):
    """The final form of an output. All methods raise OutputFailed and OutputExists."""

    def segments(self) -> list[Segment]:
        """The rows that are there. Raises OutputExists for a file that is not of the run."""

    def rows(self, segment: Segment, start: int) -> Iterator[Mapping[str, Any]]:
        """The rows of such a segment from one on."""

    def error_rows(self, segment: Segment, start: int) -> Iterator[int]:
        """The numbers of the rows with errors of such a segment, from one on."""

    def probes(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """Some of the rows that `segments` found, with their numbers; None if it is not a row."""

    def save(self, number: int, line: bytes) -> None:
        """Save a row that this process has answered. Rows come in order."""

    def take(self, segment: Segment) -> None:
        """Take the rows of an open file, which is removed once they are in the output."""

    def finish(self, total: int) -> None:
        """Complete the output of so many rows: all have been saved or taken."""

    def replace_rows(self, lines: Mapping[int, bytes]) -> None:
        """Put lines in place of rows of a complete output."""

    def remove(self) -> None:
        """Remove the output, but nothing of a folder with a file that is not of the run."""

    def close(self) -> None:
        """Complete what rows were saved in."""
