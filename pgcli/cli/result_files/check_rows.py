"""Chooses what the rows of an output are compared with: its input, or only each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pgcli.cli.result_files.compare_rows import (
    InputComparison,
    OrderComparison,
    RowComparison,
    compare,
)
from pgcli.cli.result_files.reopen_input import question_of, reopen_items, url_reader_of
from pgcli.records import Item
from pgcli.sinks.reader import IndexedRow
from pgcli.state.input_check import ImageComparison, RowComparer
from pgcli.state.progress import all_progress
from pgcli.state.run_record import RunRecord
from pgcli.state.saved_inputs import SavedInputs
from pgcli.state.state_folder import state_folder
from pgcli.tasks import Question, template_columns, with_prompts


def check_rows(
    output: Path,
    record: RunRecord,
    rows: Iterable[IndexedRow],
    images: ImageComparison,
    found: RowComparison,
) -> None:
    """Add the differences between the rows and the input of their run to the comparison."""
    items = reopen_items(output, record, url_reader_of(record))
    if items is None:
        compare(rows, OrderComparison(known_prompts(record), rows_saved(output)), found)
        return
    expected = ((item, prompt) for item in items for prompt in item.prompts)
    comparer = RowComparer(output, images, is_moved=bool(record.moved_from))
    with closing(SavedInputs.of_run(output, record)) as inputs:
        compare(rows, InputComparison(expected, inputs, comparer), found)


def known_prompts(record: RunRecord) -> Sequence[str]:
    """The prompts about every image; none if they follow from the input."""
    question = question_of(record)
    if question.templates is None or template_columns(question):
        return ()
    if isinstance(question, Question):
        question = replace(question, region=None)
    item = next(with_prompts([Item(0, "", "")], question))
    return item.prompts


def rows_saved(output: Path) -> int:
    """The number of rows when the run last stored its progress; 0 if several processes ran."""
    parts = all_progress(state_folder(output))
    return max((part.rows for part in parts.values()), default=0) if len(parts) == 1 else 0
