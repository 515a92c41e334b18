"""`--retry-errors`: asks the rows with errors again, and merges the answers into the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pgcli.records import Answer
from pgcli.run.state.forms import (
    FolderForm,
    FormContext,
    LinesForm,
    ParquetForm,
    error_rows,
    made_table,
)
from pgcli.run.state.open_files import RowFile, Segment, error_of, is_row
from pgcli.stores import LocalStore, Store

if TYPE_CHECKING:
    import pyarrow

    from pgcli.run.output import SaveRow
    from pgcli.run.run import Run

RETRIED = "open/retried.jsonl"


def retry_errors(run: Run) -> None:
    """Answer the rows with errors that earlier runs saved as one chunk, and merge them."""
    output = run.output
    form, store = output.form, output.state.store
    form.finish(output.total())
    numbers = list(error_rows(form, output.files, form.segments()))
    answered = read_retried(store)
    run.progress.say(
        f"{len(numbers):,} rows with errors are asked again; {output.state.name} is replaced once "
        "all of them are answered"
    )
    missing = [number for number in numbers if number not in answered]
    run.tally.rows_before -= len(missing)
    run.tally.errors_before = remaining_errors(answered)
    items = (pair for row in missing for pair in run.rows.numbered(range(row, row + 1)))
    run.answer(items, retried(run, answered), images=None)
    merge(form, answered, output.context)
    store.delete([RETRIED])


@contextmanager
def retried(run: Run, answered: dict[int, bytes]) -> Iterator[SaveRow]:
    """A block in which answers are kept, until all rows are answered and merged."""
    run.output.note_model(run.model.info)
    file = open_retried(run.output.state.store, answered)

    def save(number: int, row: Answer) -> None:
        answered[number] = run.output.line(row)
        file.append(b"%d %b" % (number, answered[number]))

    try:
        yield save
    finally:
        file.close()


def read_retried(store: Store) -> dict[int, bytes]:
    """The answers of an earlier command that was interrupted, by the numbers of their rows."""
    found = {}
    for line in (store.read(RETRIED) or b"").splitlines(keepends=True):
        number, _, row = line.partition(b" ")
        if not (number.isdigit() and is_row(row)):
            break  # the process or the power ended while it was written
        found[int(number)] = row
    return found


def open_retried(store: Store, answered: Mapping[int, bytes]) -> RowFile:
    """The file that keeps answers until all rows are answered and merged, with these in it."""
    assert isinstance(store, LocalStore)
    data = b"".join(b"%d %b" % pair for pair in answered.items())
    store.replace(RETRIED, data)
    return RowFile(store.open_append(RETRIED), RETRIED, len(data))


def tables_of(form: ParquetForm | FolderForm) -> Iterator[tuple[int, pyarrow.Table]]:
    """The rows of a Parquet output as tables, each with the number of its first row."""
    if isinstance(form, FolderForm):
        for segment in form.segments():
            first = segment.first
            for table in form.read_tables(segment.first // form.file_rows):
                yield first, table
                first += len(table)
        return
    first = 0
    for table in form.tables(Segment(0, 0)):
        yield first, table
        first += len(table)


def merge(form: Any, answered: Mapping[int, bytes], context: FormContext) -> None:
    """Put the answers in place of the rows with errors."""
    if isinstance(form, LinesForm):
        lines = form.read(0, 2**62)
        form.replace(answered.get(number, line) for number, line in enumerate(lines))
        return
    if isinstance(form, ParquetForm):
        tables = (merged(first, table, answered, context) for first, table in tables_of(form))
        form.rewrite(tables, remaining_errors(answered))
        return
    numbers = sorted({number // form.file_rows for number in answered})
    for number in numbers:
        first = number * form.file_rows
        changed, rows = [], 0
        for table in form.read_tables(number):
            changed.append(merged(first + rows, table, answered, context))
            rows += len(table)
        own = {row: line for row, line in answered.items() if first <= row < first + rows}
        form.replace_part(number, changed, rows, remaining_errors(own))


def merged(
    first: int, table: pyarrow.Table, answered: Mapping[int, bytes], context: FormContext
) -> pyarrow.Table:
    """A table with answers in place of some of its rows."""
    import pyarrow

    own = sorted(number for number in answered if first <= number < first + len(table))
    if not own:
        return table
    parts, at = [], first
    for number in own:
        row = json.loads(answered[number])
        parts += [table.slice(at - first, number - at), made_table(context, [row], number)]
        at = number + 1
    parts.append(table.slice(at - first))
    return pyarrow.concat_tables([part.cast(table.schema) for part in parts if len(part)])


def remaining_errors(answered: Mapping[int, bytes]) -> Counter[str]:
    """The errors that are left among answered rows."""
    return Counter(filter(None, map(error_of, answered.values())))
