"""`--retry-errors` and `--retry-changed`: rows that are asked again, and merged into the output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgcli.inputs.stamps import Stamp, is_other
from pgcli.pipeline.state.forms import error_rows
from pgcli.pipeline.state.open_files import RowFile, errors_in, is_row
from pgcli.records import Answer, DecodedImage, Item
from pgcli.stores import LocalStore, Store
from pgcli.wording import count

if TYPE_CHECKING:
    from pgcli.pipeline.output import SaveRow
    from pgcli.pipeline.run import Run

RETRIED = "open/retried.jsonl"
UNKNOWN: Stamp = 0, 0, 0
#: The line of an answer, and the stamp of its image.
Retried = tuple[Stamp, bytes]


def retry_rows(run: Run) -> None:
    """Answer rows with errors and rows of changed images again, and merge them into the output.

    The stamps of their images are noted once the output has the answers: a command that is killed
    before that leaves the images changed.
    """
    output, wants_errors = run.output, run.request.running.retry_errors
    form, store = output.form, output.state.store
    form.finish(output.total())
    errors = [*error_rows(form, output.files, form.segments())] if wants_errors else []
    changed = output.rows_of_changed()
    numbers = sorted({*errors, *changed})
    known = read_retried(store)
    kept = run.rows.chosen([number for number in numbers if number in known])
    answered = {n: known[n] for n, item in kept if is_current(item, known[n][0])}
    kinds = [f"{count(len(errors), 'row')} with errors"] * bool(errors)
    kinds += [f"{count(len(changed), 'row')} of changed images"] * bool(changed)
    verb = "is" if len(numbers) == 1 else "are"
    run.progress.say(
        f"{' and '.join(kinds)} {verb} asked again; {output.state.name} is replaced once all of "
        "them are answered"
    )
    missing = [number for number in numbers if number not in answered]
    run.tally.rows_before -= len(missing)
    errors_answered = errors_in(line for _, line in answered.values())
    run.tally.errors_before = (
        errors_answered if wants_errors else run.tally.errors_before + errors_answered
    )
    stamps: dict[int, Stamp] = {}

    def on_image(image: DecodedImage) -> None:
        stamps[image.item.index] = image.stamp or UNKNOWN

    run.answer(
        run.rows.chosen(missing), retried(run, answered, stamps), images=None, on_image=on_image
    )
    form.replace_rows({number: line for number, (_, line) in answered.items()})
    for stamp, line in answered.values():
        output.stamps.note(json.loads(line)["index"], stamp if stamp[0] else None)
    store.delete([RETRIED])


def is_current(item: Item, stamp: Stamp) -> bool:
    """Whether the image of a row is still the one that was answered, as far as that is known."""
    return not stamp[0] or item.path is None or not is_other(item.path, stamp)


@contextmanager
def retried(
    run: Run, answered: dict[int, Retried], stamps: Mapping[int, Stamp]
) -> Iterator[SaveRow]:
    """A block in which answers are kept, until all rows are answered and merged."""
    run.output.note_model(run.model.info)
    file = open_retried(run.output.state.store, answered)

    def save(number: int, row: Answer) -> None:
        answered[number] = stamps.get(row.index, UNKNOWN), run.output.line(row)
        file.append(retried_line(number, answered[number]))

    try:
        yield save
    finally:
        file.close()


def retried_line(number: int, answer: Retried) -> bytes:
    """An answer as the file has it: the numbers of the row and of the stamp before the line."""
    return b"%d %d %d %d %b" % (number, *answer[0], answer[1])


def read_retried(store: Store) -> dict[int, Retried]:
    """The answers of an earlier command that was interrupted, by the numbers of their rows."""
    answered = {}
    for line in (store.read(RETRIED) or b"").splitlines(keepends=True):
        *numbers, row = line.split(b" ", 4)
        if len(numbers) < 4 or not is_row(row):
            break  # the process or the power ended while it was written
        if not all(n.removeprefix(b"-").isdigit() and len(n) < 20 for n in numbers):
            break
        number, size, time_ns, digest = map(int, numbers)
        answered[number] = (size, time_ns, digest), row
    return answered


def open_retried(store: Store, answered: Mapping[int, Retried]) -> RowFile:
    """The file that keeps answers until all rows are answered and merged, with these in it."""
    assert isinstance(store, LocalStore)
    data = b"".join(retried_line(number, answer) for number, answer in answered.items())
    store.replace(RETRIED, data)
    return RowFile(store.open_append(RETRIED), store.path / RETRIED, len(data))
