"""A manifest or an archive: counts its rows, and reads them from any row on."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from pgcli import registry
from pgcli.arrow import STRING, JsonType
from pgcli.errors import ManifestError
from pgcli.inputs.file_table import NAMED, TABLE, FileRecord
from pgcli.inputs.options import (
    ALL,
    REGION,
    START,
    InputFile,
    ManifestRow,
    Mark,
    ReadOptions,
    error_text,
    kept_columns,
    manifest_ending,
    named_columns,
    needed_columns,
    prompt_columns,
)
from pgcli.inputs.paths import ImageLocation, display_name, locate_below
from pgcli.inputs.rows import (
    BadValue,
    check_row,
    missing_column,
    row_id,
    row_image,
    row_name,
    row_to_item,
)
from pgcli.records import Fault, Item
from pgcli.stores.files import parse_path
from pgcli.stores.urls import parent_url, url_scheme

#: Rows between two marks; a million rows have a thousand of them.
EVERY = 1000
#: Larger tables, except for tables of lines, are compared by size and time only.
MAX_DIGESTED_BYTES = 4 * 2**20
#: Of JSON lines, where each row names its own columns.
MAX_COLUMNS = 10_000
#: The value null in the name of a folder such as `shop=de`.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
GONE = ManifestRow("", {}, Fault("missing", "The file of the row no longer exists."))
#: For a table that is read without an inventory.
DEFAULT_OPTIONS, NO_RECORD = ReadOptions(), FileRecord(0, NAMED, TABLE)


def open_table(
    file: InputFile, options: ReadOptions = DEFAULT_OPTIONS, record: FileRecord = NO_RECORD
) -> Table:
    """The table in a file. Raises ManifestError for one without an ending of tables."""
    if (ending := manifest_ending(file.path)) is None:
        raise ManifestError(f"{file.name!r} is not a table")
    table: Table = registry.load("manifests", ending)(file, options, record)
    return table


class Table:
    """A table in a file, with its record or to be scanned for one; a subclass for each format.

    A format must have `read`. With `grows`, data that is appended to the file are new rows. With
    `has_names`, rows without an id have names that must be unique.
    """

    grows = has_names = False

    def __init__(
        self,
        file: InputFile,
        options: ReadOptions = DEFAULT_OPTIONS,
        record: FileRecord = NO_RECORD,
    ):
        self.name, self.record, self._options = file.name, record, options
        self._is_local = file.url_reader is None
        if self._is_local and record.size is not None:
            file = file._replace(size=record.size)
        self.file, path = file, file.path
        self.image_column = options.image_column
        self.partitions = partition_columns(path)
        self._set_columns(record.columns or ())
        self.has_excluded = False  # whether the scan skipped rows by their names
        # by columns, the reader of the last rows: the number of its next row, and its rows
        self._streams: dict[object, tuple[int, Iterator[tuple[int, ManifestRow]]]] = {}
        if not self._is_local:
            self._folder, self._root = parent_url(file.location), None
        else:
            self._folder = os.path.dirname(path)  # noqa: PTH120 - Path would drop a leading ./
            opened = os.path.dirname(file.local_path) or "."  # noqa: PTH120
            self._root = None if options.allow_outside_root else os.path.realpath(opened)

    # --- for each format

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """Rows from a mark on with at least these columns, in bounded memory.

        Without `images`, the bytes of images need not be read. Raises ManifestError with the
        position for an unreadable file.
        """
        raise NotImplementedError

    def schema(self) -> pa.Schema | None:
        """The columns in the file's header; None if each row names its own.

        Raises ManifestError.
        """
        return None

    def stated_rows(self) -> int | None:
        """The row count in the file's header, if any; its marks then are row numbers."""
        return None

    def image_texts(self, start: int, stop: int) -> pa.Array | None:
        """The image column of some rows as Arrow texts; None if that is not possible."""
        return None

    def kept_arrays(self, start: int, stop: int) -> Mapping[str, pa.ChunkedArray] | None:
        """The kept columns of chosen rows, if the format reads Arrow columns; else None."""
        return None

    def mark_before(self, row: int) -> tuple[Mark, int]:
        """The last mark at or before a row, and the number of rows between them."""
        offsets, numbers = self.record.offsets or (0,), self.record.numbers or (0,)
        number = min(row // EVERY, len(offsets) - 1)
        return Mark(offsets[number], numbers[number]), row - number * EVERY

    def _set_columns(self, columns: Iterable[str]) -> None:
        """Set the existing columns, the kept columns, and all needed columns."""
        self.record = self.record._replace(columns=tuple(columns))
        options = self._options
        self.kept = kept_columns(options.keep, columns, options.image_column)
        self._needed = needed_columns(options, self.kept) | {options.id_column, REGION}
        prompts = prompt_columns(options) if options.requires_prompts else ()
        self.columns = frozenset(self._needed.union(options.optional_fields, prompts))

    def close(self) -> None:
        """Close idle readers of the file."""
        self._streams.clear()

    @property
    def is_gone(self) -> bool:
        """Whether the local file was deleted."""
        return self._is_local and not os.path.lexists(self.file.local_path)

    @property
    def kept_schema(self) -> pa.Schema:
        """The types of the kept columns, by their names in the output; text if unknown."""
        types: dict[str, pa.DataType] = {}
        if self.record.types is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(self.record.types))
            types = dict(zip(schema.names, schema.types, strict=True))
        return pa.schema([(name, types.get(source, STRING)) for source, name in self.kept])

    # --- rows

    def items(self, index: int, start: int, stop: int, *, images: bool = True) -> Iterator[Item]:
        """The items of the chosen rows from `start` to before `stop`; the first has index `index`.

        Raises ManifestError.
        """
        rows: Iterator[ManifestRow] = iter([GONE] * (stop - start))
        if not self.is_gone:
            rows = self._chosen_rows(start, stop, self.columns, images=images)
        for number, row in enumerate(rows, index):
            yield row_to_item(
                row,
                number,
                self._options,
                locate=self._locate if row.span is None else self._locate_member,
                manifest=self.name,
                kept=self.kept,
            )

    def _chosen_rows(
        self, start: int, stop: int, columns: frozenset[str], *, images: bool
    ) -> Iterator[ManifestRow]:
        """The chosen rows; continues the last reader if it stopped shortly before them."""
        chosen = self.record.chosen or range(stop)
        next_row, rows = self._streams.pop((columns, images), (sys.maxsize, iter(())))
        is_far = self.grows and chosen[start] - next_row >= EVERY  # lines have marks
        if next_row > chosen[start] or is_far:
            rows = self._read(chosen[start], columns, images=images)
        for number, row in rows:
            if number == chosen[start]:
                start += 1
                if start == stop and stop != self.record.rows:
                    self._streams[columns, images] = number + 1, rows
                yield row
                if start == stop:
                    return
        raise ManifestError(
            f"{self.name} lost rows after they were counted",
            hint="the same command counts them again",
        )

    def _read(
        self, first: int, columns: frozenset[str], *, images: bool
    ) -> Iterator[tuple[int, ManifestRow]]:
        """The rows from a number on, with the columns of partitions."""
        mark, skip = self.mark_before(first)
        rows = islice(self.read(columns, mark, images=images), skip, None)
        place = self.partitions
        for number, (_, row) in enumerate(rows, first):
            yield number, row._replace(values={**place, **row.values}) if place else row

    def _locate(self, path: str) -> ImageLocation:
        allow_urls = self._options.url_reader is not None
        base = self.file.base
        return locate_below(self._folder, path, self._root, allow_urls=allow_urls, base=base)

    def _locate_member(self, name: str) -> ImageLocation:
        return ImageLocation(display_name(name), self.file.local_path)

    def ids(self) -> Iterator[tuple[str, str]]:
        """The ids in the chosen rows, each with its position."""
        column, count = self._options.id_column, self.record.rows or 0
        has_ids = self.has_names or column in (self.record.columns or ())
        if not has_ids or self.is_gone or not count:
            return
        name_of = row_name if self.has_names else row_id
        for row in self._chosen_rows(0, count, frozenset({column}), images=False):
            name = name_of(row, self._options)
            if name is not None:
                yield name, row.position

    def image_paths(self, start: int, stop: int) -> tuple[list[str | None], np.ndarray]:
        """The distinct image paths of some chosen rows, and the number of each row's path.

        None stands for bytes and URLs.
        """
        if self.is_gone:
            return [None], np.zeros(stop - start, np.int64)
        column, texts = self.image_column, None
        if self.record.chosen is None and column not in self.partitions:
            texts = self.image_texts(start, stop)
        if texts is None:
            rows = self._chosen_rows(start, stop, frozenset({column}), images=False)
            return [*map(self._image_path, rows)], np.arange(stop - start)
        encoded = texts.dictionary_encode(null_encoding="encode")
        distinct = (ManifestRow("", {column: text}) for text in encoded.dictionary.to_pylist())
        return [*map(self._image_path, distinct)], encoded.indices.to_numpy()

    def _image_path(self, row: ManifestRow) -> str | None:
        try:
            path, _ = row_image(row, self._options)
        except BadValue:
            return None
        if path is None or row.span is not None or url_scheme(path) is not None:
            return None
        return os.path.join(self._folder, parse_path(path))  # noqa: PTH118

    # --- scanning

    def scan(self, mark: Mark = START) -> array[int]:
        """Count and check the rows from a mark on, and set the record. Returns the hashes of ids.

        Raises ManifestError for unreadable rows and invalid ids, and UsageError for columns that do
        not exist.
        """
        options, schema, stated = self._options, self.schema(), self.stated_rows()
        columns = self.record.columns or () if schema is None else schema.names
        scanned = ScannedRows(options, [*columns, *self.partitions], has_schema=schema is not None)
        scanned.has_names = self.has_names
        self._set_columns(scanned.columns)
        if schema is not None:
            self.check_columns()
        checked = {options.id_column} | ({options.image_column} if options.names else set())
        checked |= {REGION} if options.refuses_regions else set()
        total = stated or 0
        if stated is None or not checked.isdisjoint(scanned.columns):
            wanted = frozenset(checked.union(scanned.kept))
            for begin, row in self.read(wanted, mark, images=False):
                scanned.add(begin, row)
            scanned.add_types()
            total = scanned.rows
        options.track(total - scanned.tracked)
        self._set_columns(scanned.columns)
        if total:
            self.check_columns()
        types = {name: kept.kind for name, kept in scanned.types.items()}
        if schema is not None:
            types = dict(zip(schema.names, schema.types, strict=True))
        sources = {column.source for column in self.kept} & types.keys()
        rows = len(scanned.chosen) if options.names else total
        self.has_excluded = rows < total
        self.record = self.record._replace(
            rows=rows,
            types=pa.schema([(name, types[name]) for name in sources]).serialize().to_pybytes(),
            offsets=tuple(scanned.offsets) if stated is None else None,
            numbers=tuple(scanned.numbers) if stated is None else None,
            chosen=tuple(scanned.chosen) if options.names else None,
            digest=self._digest(self.file.size)[0] if self._is_digested else None,
        )
        return scanned.hashes

    def check_columns(self) -> None:
        """Raise UsageError for a needed column that does not exist."""
        known = self.record.columns or ()
        optional = {ReadOptions.id_column, REGION, *known}
        missing = sorted(self._needed - optional)
        prompts = prompt_columns(self._options)
        if self._options.requires_prompts and not set(prompts) & set(known):
            missing.append(prompts[0])
        for name in missing:
            raise missing_column(self.name, known, name, self._options)

    def grown_from(self, earlier: FileRecord) -> Mark | None:
        """The mark after the lines of an earlier record; None if these lines have changed."""
        size = earlier.size or 0
        if not (self.grows and self._is_local and size <= self.file.size):
            return None
        digest, count, ends_line = self._digest(size)
        return Mark(size, count) if digest == earlier.digest and ends_line else None

    @property
    def _is_digested(self) -> bool:
        """Whether the file's bytes are compared if only its time differs."""
        return self._is_local and (self.grows or self.file.size <= MAX_DIGESTED_BYTES)

    def is_touched_only(self, earlier: FileRecord) -> bool:
        """Whether the file still has the bytes of an earlier record."""
        is_known = self._is_digested and None not in (earlier.digest, earlier.size)
        return is_known and self._digest(earlier.size or 0)[0] == earlier.digest

    def _digest(self, size: int) -> tuple[bytes, int, bool]:
        """Digest and line count of the first `size` bytes, and whether the last line is complete.

        Raises ManifestError.
        """
        digest, count, last = sha256(), 0, b"\n"
        try:
            with self.file.open() as file:
                while size > 0 and (chunk := file.read(min(size, 2**20))):
                    digest.update(chunk)
                    size -= len(chunk)
                    count, last = count + chunk.count(b"\n"), chunk[-1:]
                following = file.read(1)
        except OSError as problem:
            message = f"{self.name} cannot be read: {error_text(problem)}"
            raise ManifestError(message) from problem
        return digest.digest(), count, last == b"\n" or following in (b"", b"\r", b"\n")


class ScannedRows:
    """The scan of a table's rows; each row is added once.

    `columns` are all columns that rows name, `types` the types of `kept` columns in a file without
    a schema, `chosen` the numbers of the rows that names select. `offsets` and `numbers` are the
    marks of each 1,000th row, `hashes` the hashes of ids.
    """

    def __init__(self, options: ReadOptions, columns: Iterable[str], *, has_schema: bool):
        self._options, self._has_schema = options, has_schema
        self.columns = dict.fromkeys(columns)
        self.kept: dict[str, list[Any]] = {}  # with the values since the last `add_types`
        self.types: dict[str, JsonType] = {}
        if not has_schema:
            self._keep([column.source for column in named_columns(options.keep)])
            self._keep(self.columns if ALL in options.keep else ())
        self.hashes, self.offsets, self.numbers, self.chosen = (array("q") for _ in range(4))
        self.rows = self.tracked = 0
        self.has_names = False  # see `Table`

    def add(self, begin: Mark, row: ManifestRow) -> None:
        """Count a row that begins at a mark. Raises ManifestError for an invalid id."""
        options = self._options
        if self.rows % EVERY == 0:
            self.add_types()
            options.track(self.rows + 1 - self.tracked)
            self.tracked = self.rows + 1
            self.offsets.append(begin.offset)
            self.numbers.append(begin.number)
        self.rows += 1
        if not self._has_schema and not row.values.keys() <= self.columns.keys():
            self._add_columns(row.values)
        name = check_row(row, options)
        if name is None and self.has_names:
            name = row_name(row, options)
        if options.names:
            if not options.names.accepts(name or row_name(row, options) or ""):
                return
            self.chosen.append(self.rows - 1)
        if name is not None:
            self.hashes.append(hash(name))
        for column, values in self.kept.items():
            values.append(row.values.get(column))

    def add_types(self) -> None:
        """Add the types of the kept values since the last call."""
        for column, values in self.kept.items():
            self.types[column].add(values)
            values.clear()

    def _add_columns(self, names: Iterable[str]) -> None:
        if len(self.columns) < MAX_COLUMNS:
            self.columns |= dict.fromkeys(names)
            if ALL in self._options.keep:
                self._keep(names)

    def _keep(self, columns: Iterable[str]) -> None:
        for column in columns:
            self.kept.setdefault(column, [])
            self.types.setdefault(column, JsonType())


def partition_columns(path: str) -> dict[str, str | None]:
    """The keys and values of partitions in a path: `shop=de/`."""
    folders = (part.partition("=") for part in path.split("/")[:-1])
    values = {unquote(key): unquote(value) for key, sign, value in folders if key and sign}
    return {key: None if value == NULL_PARTITION else value for key, value in values.items()}
