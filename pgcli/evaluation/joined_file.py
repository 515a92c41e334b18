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
    tasks: Sequence[str]
    missing: int
    surplus: int
    repeated: int = 0

    def select(self, numbers: Sequence[int]) -> JoinedFile:
        """Some of the rows."""
        return replace(
            self,
            rows=[self.rows[number] for number in numbers],
            tasks=[self.tasks[number] for number in numbers],
        )


def only_common(files: Sequence[JoinedFile]) -> list[JoinedFile]:
    """The rows that have a truth and are in all of the files, in the same order."""
    keyed = [
        {
            row_key(row): number
            for number, row in enumerate(file.rows)
            if row.row is not None and row.truth is not None
        }
        for file in files
    ]
    common = [key for key in keyed[0] if all(key in numbers for numbers in keyed)]
    if not common:
        raise UsageError(
            "no row is in all of the files and the truth", hint="leave out --only-common"
        )
    pairs = zip(files, keyed, strict=True)
    return [file.select([numbers[key] for key in common]) for file, numbers in pairs]


def paired(first: JoinedFile, second: JoinedFile) -> list[JoinedFile]:
    """Both files with the same rows in the same order; one that a file lacks is missing there."""
    files = (first, second)
    answered = [
        {row_key(row): number for number, row in enumerate(file.rows) if row.row is not None}
        for file in files
    ]
    ids = {id_ for numbers in answered for id_, _ in numbers}
    missing = [
        {
            row_key(row): number
            for number, row in enumerate(file.rows)
            if row.row is None and (row.prompt is not None or row.id not in ids)
        }
        for file in files
    ]
    order = dict.fromkeys(key for numbers in (*answered, *missing) for key in numbers)
    found = []
    for place, file in enumerate(files):
        joined, tasks = [], []
        other, own = files[1 - place], {**missing[place], **answered[place]}
        others = {**missing[1 - place], **answered[1 - place]}
        for key in order:
            known, numbers = (file, own) if key in own else (other, others)
            row = known.rows[numbers[key]]
            is_missing = known is other and row.row is not None
            joined.append(JoinedRow(*key, None, row.truth) if is_missing else row)
            tasks.append(known.tasks[numbers[key]])
        found.append(replace(file, rows=joined, tasks=tasks))
    return found


def row_key(row: JoinedRow) -> tuple[str, str | None]:
    """The id and the prompt of a row."""
    return row.id, row.prompt
