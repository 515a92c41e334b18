"""Compares every row of an output with the input of its run."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pgcli.inputs import Inventory
from pgcli.inputs.options import manifest_ending
from pgcli.output.reader import IndexedRow, Row, indexed_rows
from pgcli.records import Item
from pgcli.rows import prompt_of
from pgcli.run.checks import read_options
from pgcli.run.comparison import (
    STAMPS,
    ImageStamps,
    compare_images,
    described,
    input_difference,
    stamp_at,
)
from pgcli.run.input_rows import RunRows
from pgcli.run.questions import lines_of_file
from pgcli.run.request import RunRequest
from pgcli.run.state.folder import inventory_name, shard_stores
from pgcli.run.state.owner import owners
from pgcli.run.state.record import state_lacks
from pgcli.run.status import open_store, record_of, recorded_rows, reopened_request
from pgcli.stores import Store
from pgcli.stores.urls import url_scheme
from pgcli.tasks import EmbeddingQuestion
from pgcli.text import count

MAX_DIFFERENCES_SHOWN = 10


@dataclass
class RowComparison:
    """The counts of compared rows and the differences between an output and its input.

    While a run `is_running`, missing rows are no difference. `gone` counts rows of images that were
    removed from the input, `unstamped` images whose size and time were not recorded, `at_urls`
    images at URLs that no listing names.
    `changed_table` describes the first changed table of the input, and `compared` what was
    compared.
    """

    is_running: bool = False
    rows: int = 0
    errors: int = 0
    gone: int = 0
    missing: int = 0
    surplus: int = 0
    differences: int = 0
    unstamped: int = 0
    at_urls: int = 0
    compared: list[str] = field(default_factory=list)
    is_stdin: bool = False
    changed_table: str = ""
    first_differences: list[str] = field(default_factory=list)

    def add(self, difference: str, *, missing: bool = False, surplus: bool = False) -> None:
        """Count a difference, of a missing or a surplus row if given."""
        if missing and self.is_running:
            return
        self.differences += 1
        self.missing += missing
        self.surplus += surplus
        if len(self.first_differences) < MAX_DIFFERENCES_SHOWN:
            self.first_differences.append(difference)

    def add_row(self, position: int, row: Row | None) -> bool:
        """Count a row; return False, and count a difference, for an unreadable one."""
        if row is None:
            self.add(f"row {position + 1:,} is truncated or damaged")
            return False
        self.rows += 1
        self.errors += row.get("error") is not None
        return True

    @property
    def remedy(self) -> str:
        """How to fix the output."""
        if self.missing == self.differences:
            return "the same command adds the missing rows"
        if self.surplus == self.differences:
            return (
                "the input has fewer rows than before: restore it, or use --overwrite to write "
                "the output again"
            )
        return "--overwrite writes it again; another -o leaves it unchanged"


def checked_rows(output: str, comparison: RowComparison) -> Iterator[IndexedRow]:
    """The rows of an output; differences from the input of its run are added on the way.

    Raises UsageError for an output without a run record, and for unreadable sources.
    """
    store = open_store(output)
    record = record_of(output, store)
    request = reopened_request(output, record)
    rows = complete_rows(indexed_rows(Path(output)), comparison)
    if "-" in request.sources:
        comparison.is_stdin = True
        counts = (owner.values.get("rows") for owner in owners(store))
        saved = max((count for count in counts if isinstance(count, int)), default=0)
        yield from compare_with_each_other(rows, saved, comparison)
        return
    expected = present_rows(store, request, comparison)
    stamps = ImageStamps.merged([store, *shard_stores(store)])
    yield from compare_with_input(rows, expected, request.input.limit, stamps, comparison)
    if comparison.unstamped and not stamps.any():
        raise state_lacks(store, STAMPS)


def complete_rows(rows: Iterable[IndexedRow], comparison: RowComparison) -> Iterator[IndexedRow]:
    """The rows, without an incomplete last row that a run is still writing."""
    following = iter(rows)
    current = next(following, None)
    while current is not None:
        after = next(following, None)
        if after is not None or current[1] is not None or not comparison.is_running:
            yield current
        current = after


def present_rows(store: Store, request: RunRequest, comparison: RowComparison) -> RunRows:
    """The rows of the input now; rows of known files keep their positions."""
    question = request.question
    if isinstance(question, EmbeddingQuestion) and question.embeds_texts:
        file = question.texts_file and os.path.join(request.folder, question.texts_file)  # noqa: PTH118
        more = lines_of_file(file, noun="text") if file else []
        inventory = Inventory.of_texts([*question.texts, *more], read_options(request))
        return RunRows(inventory, question)
    recorded = recorded_rows(store, request, request.input.url_reader)
    options = read_options(request)
    if recorded is None:
        raise state_lacks(store, inventory_name(0))
    inventory = Inventory.scan(request.sources, options, recorded.inventory)
    rows = RunRows(inventory, question)
    comparison.gone = inventory.gone * (rows.per_item or 1)
    change = inventory.changes(lambda items: True)
    if change is not None and manifest_ending(change.name) is not None:
        comparison.changed_table = described(change)
        return RunRows(Inventory.scan(request.sources, options), question)
    return rows


def changed_files(
    expected: RunRows, stamps: np.ndarray, errors: Sequence[int], comparison: RowComparison
) -> Iterator[str]:
    """Descriptions of the changed files, except files with failed rows only."""
    per_item = expected.per_item or 1

    def is_answered(items: range) -> bool:
        start, stop = items.start * per_item, items.stop * per_item
        return stop - start > bisect_left(errors, stop) - bisect_left(errors, start)

    inventory = expected.inventory
    images = compare_images(inventory, stamps, is_answered)
    comparison.compared.append("sizes and times of files")
    if stamps.any():
        comparison.compared.append("bytes of touched ones")
    comparison.gone += images.gone * per_item
    changes = [*inventory.each_change(is_answered, stamps), *images.changed]
    yield from map(described, changes)


def compare_with_input(
    rows: Iterable[IndexedRow],
    expected: RunRows,
    limit: int | None,
    stamps: np.ndarray,
    comparison: RowComparison,
) -> Iterator[IndexedRow]:
    """The rows, compared with the item and prompt at their position; images with `stamps`."""
    comparison.compared.append("number and order of rows, ids, names of images, prompts")
    numbered = enumerate((item, prompt) for _, item in expected.stream() for prompt in item.prompts)
    errors, unstamped, last_url = list[int](), set[int](), -1
    for position, row in rows:
        yield position, row
        match = skip_to(position, numbered, comparison)
        if not comparison.add_row(position, row) or row is None:
            continue
        if row.get("error") is not None:
            errors.append(position)
        if match is None:
            comparison.add(
                f"row {position + 1:,} matches no input: {row.get('id')!r}", surplus=True
            )
        elif change := input_difference(row, *match):
            comparison.add(f"row {position + 1:,} {change}")
        elif row.get("error") is None and match[0].path is not None and match[0].span is None:
            index = match[0].index
            if url_scheme(match[0].path) is None:
                if stamp_at(stamps, index)[0] == 0:  # its size and time were not noted
                    unstamped.add(index)
            elif index != last_url:
                last_url = index
                comparison.at_urls += not expected.inventory.lists(index)
    comparison.unstamped = sum(not expected.inventory.lists(index) for index in unstamped)
    for position, (item, _) in numbered:
        if comparison.is_running or (limit is not None and position >= limit):
            break
        comparison.add(f"row {position + 1:,} is missing: {item.id!r}", missing=True)
    if comparison.changed_table:
        if not comparison.differences:  # differences of rows say more
            comparison.add(comparison.changed_table)
        return
    for change in changed_files(expected, stamps, errors, comparison):
        comparison.add(change)


def skip_to(
    position: int, numbered: Iterator[tuple[int, tuple[Item, str]]], comparison: RowComparison
) -> tuple[Item, str] | None:
    """The item and the prompt of a row, or None; items before it that have no row are missing."""
    for number, (item, prompt) in numbered:
        if number == position:
            return item, prompt
        comparison.add(f"row {number + 1:,} is missing: {item.id!r}", missing=True)
    return None


def compare_with_each_other(
    rows: Iterable[IndexedRow], saved: int, comparison: RowComparison
) -> Iterator[IndexedRow]:
    """The rows of standard input: in order, none twice, and at least `saved`."""
    comparison.compared.append("number and order of rows")
    index, prompts = -1, set[str]()  # of the rows of this image
    for position, row in rows:
        yield position, row
        if not comparison.add_row(position, row) or row is None:
            continue
        number, prompt = row.get("index"), str(prompt_of(row))
        if number != index:
            if not isinstance(number, int) or number != index + 1:
                comparison.add(f"row {position + 1:,} is out of order")
            index, prompts = number if isinstance(number, int) else index, set()
        if prompt in prompts:
            comparison.add(f"row {position + 1:,} is a duplicate: {row.get('id')!r}")
        prompts.add(prompt)
    if comparison.rows < saved and not comparison.differences:
        remain = f"the run saved {saved:,} rows, and {comparison.rows:,} remain"
        comparison.add(remain, missing=True)


def not_compared(comparison: RowComparison) -> Iterator[str]:
    """The properties that were not compared, with the reasons."""
    if comparison.is_stdin:
        yield "ids and names of images, because standard input is gone"
        return
    if comparison.unstamped:
        images = count(comparison.unstamped, "image")
        yield f"{images} named by manifests, whose size and time are not recorded"
    if comparison.at_urls:
        yield f"{count(comparison.at_urls, 'image')} at URLs"
    if comparison.gone:
        yield f"{count(comparison.gone, 'row')} of images that were removed from the input"
