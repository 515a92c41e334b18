"""`--retry-errors`: asks the rows with errors again, and merges the answers into the output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgcli.records import Answer
from pgcli.run.state.forms import error_rows
from pgcli.run.state.open_files import RowFile, errors_in, is_row
from pgcli.stores import LocalStore, Store

if TYPE_CHECKING:
    from pgcli.run.output import SaveRow
    from pgcli.run.run import Run

RETRIED = "open/retried.jsonl"


def retry_errors(run: Run) -> None:
    """Answer the rows with errors that earlier runs saved as one chunk, and merge them."""
    output = run.output
    form, store = output.form, output.state.store
    form.finish(output.total())
    numbers = list(error_rows(form, output.files, form.segments()))
    known = read_retried(store)
    answered = {number: known[number] for number in numbers if number in known}
    run.progress.say(
        f"{len(numbers):,} rows with errors are asked again; {output.state.name} is replaced once "
        "all of them are answered"
    )
    missing = [number for number in numbers if number not in answered]
    run.tally.rows_before -= len(missing)
    run.tally.errors_before = errors_in(answered.values())
    items = (pair for row in missing for pair in run.rows.numbered(range(row, row + 1)))
    run.answer(items, retried(run, answered), images=None)
    form.replace_rows(answered)
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
    answered = {}
    for line in (store.read(RETRIED) or b"").splitlines(keepends=True):
        number, _, row = line.partition(b" ")
        if not (number.isdigit() and len(number) < 19 and is_row(row)):
            break  # the process or the power ended while it was written
        answered[int(number)] = row
    return answered


def open_retried(store: Store, answered: Mapping[int, bytes]) -> RowFile:
    """The file that keeps answers until all rows are answered and merged, with these in it."""
    assert isinstance(store, LocalStore)
    data = b"".join(b"%d %b" % pair for pair in answered.items())
    store.replace(RETRIED, data)
    return RowFile(store.open_append(RETRIED), store.path / RETRIED, len(data))
