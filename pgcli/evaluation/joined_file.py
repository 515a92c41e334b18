"""The rows of a result file beside their truth, and the rows that several files have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import JoinedRow


@dataclass(frozen=True)
class JoinedFile:
    """The rows of a result file with their truth, and the truths that have no row.

    `repeated` rows were left out, as a later one has the same id and prompt.
    """

    name: str
    path: Path
    rows: Sequence[JoinedRow]
    missing: int
    surplus: int
    repeated: int = 0


def only_common(files: Sequence[JoinedFile]) -> list[JoinedFile]:
    """The rows that have a truth and are in all of the files, in the same order."""
    complete = [
        {row.key: row for row in file.rows if row.row is not None and row.truth is not None}
        for file in files
    ]
    common = [key for key in complete[0] if all(key in rows for rows in complete)]
    if not common:
        raise UsageError(
            "no row is in all of the files and the truth", hint="leave out --only-common"
        )
    pairs = zip(files, complete, strict=True)
    return [replace(file, rows=[rows[key] for key in common]) for file, rows in pairs]


def paired(first: JoinedFile, second: JoinedFile) -> list[JoinedFile]:
    """Both files with the same rows in the same order; one that a file lacks is missing there."""
    files = (first, second)
    answered = [{row.key: row for row in file.rows if row.row is not None} for file in files]
    ids = {id_ for rows in answered for id_, _ in rows}
    missing = [
        {
            row.key: row
            for row in file.rows
            if row.row is None and (row.prompt is not None or row.id not in ids)
        }
        for file in files
    ]
    order = dict.fromkeys(key for rows in (*answered, *missing) for key in rows)
    known = [{**missing[place], **answered[place]} for place in (0, 1)]
    return [
        replace(
            file,
            rows=[own[key] if key in own else without_row(other[key]) for key in order],
        )
        for file, own, other in zip(files, known, reversed(known), strict=True)
    ]


def without_row(row: JoinedRow) -> JoinedRow:
    """The truth of a row that is missing in another file."""
    return replace(row, row=None, boxes=(), masks=())
