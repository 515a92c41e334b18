"""The rows of a result file as a person has reviewed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pgcli.errors import UsageError
from pgcli.output.reader import Row, read_results
from pgcli.results.edits import Edit, corrected
from pgcli.results.gallery.sanitize import clean_line, clean_text
from pgcli.results.images import image_index
from pgcli.results.imports.value_checks import InvalidValue
from pgcli.rows import answer_digest, prompt_of

#: Which rows are written: all but rejected ones, only accepted ones, or all.
WantedRows = Literal["not-rejected", "accepted", "all"]


@dataclass
class EditStats:
    """How many rows are written, and how many of all rows have which review."""

    rows: int = 0
    accepted: int = 0
    corrected: int = 0
    rejected: int = 0
    open: int = 0


@dataclass
class MatchedEdits:
    """The edits by the row that they are of, and those that cannot be applied.

    `missing` edits are of no row of the file, `changed` ones of a row with another answer now;
    `elsewhere` counts those of other files of a page of several.
    """

    applied: dict[tuple[int, str, str], Edit] = field(default_factory=dict)
    missing: list[Edit] = field(default_factory=list)
    changed: list[Edit] = field(default_factory=list)
    elsewhere: int = 0
    columns: dict[str, None] = field(default_factory=dict)


def match_edits(edits: Sequence[Edit], output: Path, rows: Iterator[Row]) -> MatchedEdits:
    """Find the row of each edit. Raises UsageError for two edits of one row."""
    names = {clean_line(output.name), clean_line(str(output))}
    own = [edit for edit in edits if edit.file is None or edit.file in names]
    wanted: dict[tuple[int, str, str], Edit] = {}
    for edit in own:
        if (first := wanted.setdefault(edit.key, edit)) is not edit:
            raise UsageError(
                f"{edit} is of the same row as edit {first.number}", hint="remove one of the two"
            )
    found = MatchedEdits(elsewhere=len(edits) - len(own))
    for row in rows:
        found.columns |= dict.fromkeys(row)
        matching = wanted.pop(row_key(row), None)
        if matching is not None and matching.digest == answer_digest(row):
            found.applied[matching.key] = matching
        elif matching is not None:
            found.changed.append(matching)
    found.missing = list(wanted.values())
    return found


def row_key(row: Row) -> tuple[int, str, str]:
    """What names the row in edits, as the page shows it."""
    return image_index(row), clean_line(row["id"]), clean_text(prompt_of(row)) or ""


class EditedRows:
    """The rows with their edits applied, in their order. `stats` are of the last pass."""

    def __init__(self, output: Path, edits: MatchedEdits, wanted: WantedRows):
        self._output, self._edits, self._wanted = output, edits.applied, wanted
        self.stats = EditStats()

    def __iter__(self) -> Iterator[Row]:
        """The wanted rows. Raises UsageError for an edit that its row cannot have."""
        stats = self.stats = EditStats()
        for row in read_results(self._output, exact=True):
            edit = self._edits.get(row_key(row))
            state = "open" if edit is None else edit.state
            setattr(stats, state, getattr(stats, state) + 1)
            if self._wanted == "accepted" and state != "accepted":
                continue
            if self._wanted == "not-rejected" and state == "rejected":
                continue
            stats.rows += 1
            if edit is None or state == "rejected":
                yield row
                continue
            stats.corrected += edit.is_correction
            try:
                yield corrected(row, edit)
            except (InvalidValue, TypeError, KeyError, AttributeError) as problem:
                raise UsageError(
                    f"{problem}"
                    if isinstance(problem, InvalidValue)
                    else f"{edit} is of a row whose boxes are not valid",
                    hint="remove this edit from the file, or make the page again",
                ) from problem
