"""The rows of a result file by number, and the order in which a page shows them."""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.json
from pyarrow import parquet, types

from pgcli.arrow import STRING
from pgcli.errors import UsageError
from pgcli.output import PART_ENDING, named_format
from pgcli.output.lines import parse_row
from pgcli.output.reader import (
    DAMAGED,
    Row,
    find_sources,
    read_results,
    reading,
    with_integers,
)
from pgcli.output.schema import line_type
from pgcli.output.tables import READ_BYTES, READ_ROWS, read_part
from pgcli.records import TIMING_COLUMNS
from pgcli.results.pages import clean_text
from pgcli.rows import RowSchema
from pgcli.stores.files import open_regular

Array = np.ndarray[Any, Any]

FIRST_BYTES, BLOCK_BYTES = 2**20, 2**23  # of lines that are read at once; the first rows show soon
LONGEST_LINE = 2**27
PARSED_BYTES = 2**20  # of a block that each of Arrow's threads parses at once
SEARCH_SECONDS = 0.6  # that a request searches; it returns what it found by then
FACTS = ("index", "prompt", "answer", "error", "boxes", "logprob", *TIMING_COLUMNS)
TEXTS = ("id", "image", "prompt", "answer", "error", "error_message", "text", "boxes")
BOX_TOKENS = r"<(loc|seg)\d+>"
#: The reviews of rows, and those that the page's filter selects.
UNREVIEWED, ACCEPTED, CORRECTED, REJECTED = range(4)
REVIEWS = {
    "open": (UNREVIEWED,),
    "accepted": (ACCEPTED, CORRECTED),
    "corrected": (CORRECTED,),
    "rejected": (REJECTED,),
}


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Consecutive rows from the number `first`: lines of a file, or a row group of Parquet.

    `start` is the first byte, from which `ends` count, or the number of the row group.
    """

    path: Path
    first: int
    rows: int
    start: int
    ends: Array | None = None
    file: BinaryIO | None = None

    def lines(self, number: int | None = None) -> bytes:
        """A line of the block, or all of them."""
        assert self.ends is not None and self.file is not None  # noqa: PT018 - both, or a row group
        begin = int(self.ends[number - 1]) if number else 0
        end = int(self.ends[-1 if number is None else number])
        return os.pread(self.file.fileno(), end - begin, self.start + begin)


class ServedRows:
    """The rows of an output by their numbers, from 0, as far as `index` has found them.

    Arrays have a few bytes of each row; everything else is read from the files again. Raises
    UsageError if the output has no rows.
    """

    def __init__(self, output: Path):
        self.output = output
        first = next(read_results(output), None)
        if first is None:
            raise UsageError(f"{output} has no rows yet", hint="try again later")
        self._kept = RowSchema.of(first).keep
        self._texts = [
            *TEXTS,
            *(name for name in self._kept if isinstance(first[name], str | None)),
        ]
        self._blocks: list[RowBlock] = []
        self._firsts: list[int] = []
        self._facts: list[pyarrow.RecordBatch] = []
        self._labels: list[tuple[Array, pyarrow.Array]] = []  # rows, and a label that they have
        self._search_lock = threading.Lock()
        self._terms: Sequence[str] = ()  # of the last search, and what it found in each block
        self._found: list[Array] = []
        self._part = lru_cache(maxsize=8)(self._read_part)
        self.is_complete = False

    def __len__(self) -> int:
        return self._blocks[-1].first + self._blocks[-1].rows if self._blocks else 0

    def index(self, seen: Callable[[RowBlock, Array], None]) -> None:
        """Find all rows; `seen` gets each block with its column `index` before its rows count.

        Raises UsageError for anything that is not a row of an answering command.
        """
        with reading(self.output):
            for source in find_sources(self.output):
                if source.first < len(self):
                    raise UsageError(f"a run is writing {source.path}", hint="try again later")
                is_table = named_format(source.path.name) == PART_ENDING
                for next_block in (row_groups if is_table else line_blocks)(source.path):
                    block = replace(next_block, first=len(self))
                    table = self._table(block, FACTS)
                    if len(table) != block.rows:
                        raise damaged(f"a row of {source.path}")
                    self._facts.append(facts_of(table))
                    self._labels.append(row_labels(table, block.first))
                    seen(block, self._facts[-1]["index"].to_numpy())
                    self._firsts.append(block.first)
                    self._blocks.append(block)  # from now on, its rows count
                    pyarrow.default_memory_pool().release_unused()
        self.is_complete = True

    def row(self, number: int) -> Row:
        """The row with this number. Raises UsageError if its file has changed."""
        block = self._blocks[bisect_right(self._firsts, number) - 1]
        return self.row_in(block, number - block.first)

    def row_in(self, block: RowBlock, number: int) -> Row:
        """A row of a block. Raises UsageError."""
        with reading(self.output):
            if block.ends is None:
                part = self._part(block.path, block.start, number // READ_ROWS)
                return with_integers(part[number % READ_ROWS])
            row = parse_row(block.lines(number).rstrip() + b"\n")
        if row is None:
            raise damaged(f"row {block.first + number + 1:,} of {self.output}")
        return with_integers(row)

    def _read_part(self, path: Path, group: int, part: int) -> list[Row]:
        """Rows of a row group, READ_ROWS at a time."""
        with open_regular(path) as file, parquet.ParquetFile(file, pre_buffer=False) as opened:
            batches = opened.iter_batches(READ_ROWS, [group], use_threads=False)
            for _ in range(part):
                next(batches)
            rows = read_part(batches, {*self._kept}, READ_BYTES, exact=False)
        columns: Mapping[str, Any] = {} if rows is None else rows[0]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _table(self, block: RowBlock, names: Sequence[str]) -> pyarrow.Table:
        """Columns of a block, null where it does not have them."""
        if block.ends is not None:
            lines, longest = block.lines(), int(np.diff(block.ends, prepend=0).max()) + 1
            return pyarrow.json.read_json(
                pyarrow.BufferReader(lines),
                pyarrow.json.ReadOptions(block_size=max(PARSED_BYTES, longest)),
                pyarrow.json.ParseOptions(
                    pyarrow.schema([(name, line_type(name)) for name in names]),
                    unexpected_field_behavior="ignore",
                ),
            )
        with open_regular(block.path) as file, parquet.ParquetFile(file) as opened:
            known = [name for name in names if name in opened.schema_arrow.names]
            table = opened.read_row_group(block.start, known, use_threads=False)
        for name in {*names}.difference(known):
            table = table.append_column(name, pyarrow.nulls(len(table), line_type(name)))
        return table

    def facts(self) -> dict[str, Any]:
        """What the page's controls show: counts, and distinct values with theirs."""
        table = pyarrow.Table.from_batches(self._facts[: len(self._blocks)])
        labels = Counter[str]()
        for _, column in self._labels[: len(self._blocks)]:
            labels.update(dict(counted(column)))
        return {
            "total": len(table),
            "errors": len(table) - table["error"].null_count,
            "reviewable": pc.sum(table["reviewable"]).as_py(),
            "prompts": [prompt for prompt, _ in counted(table["prompt"])],
            "codes": counted(table["error"].drop_null()),
            "labels": sorted(labels.items(), key=lambda pair: (-pair[1], pair[0])),
        }

    def order(self, query: Mapping[str, Any], states: Array) -> tuple[Array, bool]:
        """The numbers of the rows that match the page's filters, and whether all were searched.

        `states` are the reviews of the rows.
        """
        if not (total := len(states)):
            return np.zeros(0, "<i4"), True
        table = pyarrow.Table.from_batches(self._facts).slice(0, total)
        keep = as_numpy(table["error"].is_valid()) == bool(query["errors"])
        for name, text in (("prompt", query["prompt"]), ("error", query["code"])):
            if text is not None:
                keep &= as_numpy(pc.equal(table[name].cast(STRING), str(text)), False)
        if states_shown := REVIEWS.get(query["review"]):
            keep &= as_numpy(table["reviewable"]) & np.isin(states, states_shown)
        if query["labels"]:
            wanted, has_label = pyarrow.array(query["labels"], STRING), np.zeros(total, bool)
            for rows, labels in self._labels[: len(self._blocks)]:
                chosen = rows[as_numpy(pc.is_in(labels.cast(STRING), wanted))]
                has_label[chosen[chosen < total]] = True
            keep &= has_label
        is_searched = True
        if query["terms"]:
            matches, is_searched = self._matching([str(term) for term in query["terms"]], total)
            keep &= matches
        order = np.flatnonzero(keep)
        if query["sort"] != "order":
            keys = table[query["sort"]].take(pyarrow.array(order))
            direction = "descending" if query["descending"] else "ascending"
            order = order[pc.array_sort_indices(keys, order=direction).to_numpy()]
        elif query["descending"]:
            order = order[::-1]
        return order.astype("<i4"), is_searched

    def _matching(self, terms: Sequence[str], total: int) -> tuple[Array, bool]:
        """Which rows have all terms, as far as they are searched; True if all are."""
        deadline = monotonic() + SEARCH_SECONDS
        # letters and digits are the same in JSON, so that a file of lines is parsed where they are
        runs = [max(re.findall(rb"[a-z0-9]*", term.lower().encode()), key=len) for term in terms]
        with self._search_lock, reading(self.output):
            if terms != self._terms:
                self._terms, self._found = terms, []
            while (is_part := len(self._found) < len(self._blocks)) and monotonic() < deadline:
                block = self._blocks[len(self._found)]
                text = b"" if block.ends is None else block.lines().lower()
                if text and not all(run in text for run in runs):
                    self._found.append(np.zeros(block.rows, bool))
                    continue
                table, matches = self._table(block, self._texts), np.ones(block.rows, bool)
                for term in terms:
                    matches &= np.any([has_term(c, term) for c in table.columns], axis=0)
                self._found.append(matches)
            matching = np.concatenate([*self._found, np.zeros(total, bool)])[:total]
        pyarrow.default_memory_pool().release_unused()
        return matching, not is_part


def damaged(row: str) -> UsageError:
    """The error for a row that cannot be read."""
    hint = "run the command that wrote it again: it completes the file"
    return UsageError(f"{row} {DAMAGED}", hint=hint)


def line_blocks(path: Path) -> Iterator[RowBlock]:
    """The complete lines of a file. Raises ValueError for a line that is too long for a row."""
    file, start, size = open_regular(path), 0, FIRST_BYTES
    while data := os.pread(file.fileno(), size, start):
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        if len(data) < size and parse_row(data[int(ends[-1]) if len(ends) else 0 :] + b"\n"):
            ends = np.append(ends, len(data))  # the last line has no newline
        if len(ends):
            yield RowBlock(path, 0, len(ends), start, ends.astype(np.uint32), file)
            start, size = start + int(ends[-1]), BLOCK_BYTES
        elif len(data) < size:
            return  # a truncated last line
        elif size > LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE >> 20} MiB")
        else:
            size *= 2


def row_groups(path: Path) -> Iterator[RowBlock]:
    """The row groups of a Parquet file."""
    with open_regular(path) as file, parquet.ParquetFile(file) as opened:
        rows = [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)]
    for group, number in enumerate(rows):
        yield RowBlock(path, 0, number, group)


def facts_of(table: pyarrow.Table) -> pyarrow.RecordBatch:
    """What rows are filtered and sorted by, a few bytes of each."""
    index = pc.fill_null(combined(table["index"]).cast(pyarrow.int64()), -1)
    error, has_answer = cleaned(combined(table["error"])), combined(table["answer"]).is_valid()
    timings = ("load_ms", "vision_ms", "prefill_ms", "decode_ms")
    logprob, load, *stages = (as_numpy(combined(table[n]), np.nan) for n in ("logprob", *timings))
    is_timed = ~np.isnan(stages[0]) | ~np.isnan(stages[2])
    numbers = {
        "logprob": logprob,
        "load": load,
        "time": np.where(is_timed, np.nansum(stages, axis=0), np.nan),
        "confidence": most_confident(combined(table["boxes"])),
    }
    columns = {
        "index": index,
        "prompt": cleaned(pc.fill_null(combined(table["prompt"]).cast(STRING), "")),
        "error": error,
        "reviewable": pc.and_(pc.and_(has_answer, error.is_null()), pc.greater_equal(index, 0)),
        **{name: values.astype(np.float32) for name, values in numbers.items()},
    }
    return pyarrow.RecordBatch.from_pydict(columns)


def most_confident(boxes: pyarrow.ListArray) -> Array:
    """The largest confidence of each row, or else score; NaN without boxes."""
    flat, most = boxes.flatten(), np.full(len(boxes), -np.inf)
    numbers = [pc.struct_field(flat, name) for name in ("confidence", "score")]
    parents = pc.list_parent_indices(boxes).to_numpy()
    np.maximum.at(most, parents, as_numpy(pc.coalesce(*numbers), 0.0))
    return np.where(np.isinf(most), np.nan, most)


def row_labels(table: pyarrow.Table, first: int) -> tuple[Array, pyarrow.Array]:
    """The numbers of rows with each of their labels once."""
    boxes = combined(table["boxes"])
    labels = cleaned(pc.fill_null(pc.struct_field(boxes.flatten(), "label"), ""))
    parents = pc.list_parent_indices(boxes).to_numpy().astype(np.int64)
    pairs = np.unique((parents << 32) | labels.indices.to_numpy())
    codes = pyarrow.array(pairs & (2**32 - 1), pyarrow.int32())
    own = pyarrow.DictionaryArray.from_arrays(codes, labels.dictionary)
    return ((pairs >> 32) + first).astype(np.int32), own


def has_term(column: pyarrow.ChunkedArray, term: str) -> Array:
    """Which rows have a term in this column, without regard to case; of boxes, in their labels."""
    values = combined(column)
    if types.is_list(values.type):
        in_boxes = np.zeros(len(values), bool)
        parents = pc.list_parent_indices(values).to_numpy()
        labels = pc.struct_field(values.flatten(), "label")
        has_label = as_numpy(pc.match_substring(labels, term, ignore_case=True), False)
        in_boxes[parents[has_label]] = True
        return in_boxes
    texts = pc.replace_substring_regex(values.cast(STRING), BOX_TOKENS, "")  # nobody searches them
    return as_numpy(pc.match_substring(texts, term, ignore_case=True), False)


def cleaned(column: pyarrow.Array) -> pyarrow.DictionaryArray:
    """The texts as the page shows them, each distinct one once."""
    encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    shown = [clean_text(text) for text in encoded.dictionary.to_pylist()]
    return pyarrow.DictionaryArray.from_arrays(encoded.indices, pyarrow.array(shown, STRING))


def counted(column: Any) -> list[tuple[str, int]]:
    """The distinct texts of a column as they appear, and how often."""
    counts = pc.value_counts(column.cast(STRING))
    return [*zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)]


def combined(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    """A column in one piece."""
    return column.combine_chunks()


def as_numpy(values: Any, missing: Any = None) -> Array:
    """The values as NumPy has them, with one for null."""
    filled = values if missing is None else pc.fill_null(values, missing)
    numpy: Array = (
        filled.to_numpy(zero_copy_only=False)
        if isinstance(filled, pyarrow.Array)
        else filled.to_numpy()
    )
    return numpy
