"""Scans sources for new files of an inventory, and compares known files with their records."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgcli.errors import NoInputError, UsageError
from pgcli.inputs.file_table import (
    IMAGE,
    NAMED,
    STDIN,
    TABLE,
    FileRecord,
    make_table,
    read_records,
)
from pgcli.inputs.lines import STDIN_NAME, Stdin
from pgcli.inputs.listing import SourceFiles, usage_errors
from pgcli.inputs.options import ALL, START, Mark, ReadOptions, named_columns, no_input_hint
from pgcli.inputs.paths import display_name
from pgcli.inputs.rows import repeated_id
from pgcli.inputs.tables import Table

PATTERNS_HINT = "a pattern must match the whole relative path or id; * matches any text"
MAX_SUSPECTS = 1000  # equal hashes of ids that are compared for one error message


class Scan:
    """The new files of sources, and the changes of `known` files.

    After `records`: `changed` has the number of the first record of each changed file, with whether
    only its time differs; `removed` has the numbers of the records of deleted files; `ignored`
    counts skipped files by ending, and `skipped` members of archives; `has_excluded` says whether
    patterns excluded images; `hashes` are the hashes of the ids in new rows.
    """

    def __init__(self, sources: Sequence[SourceFiles], options: ReadOptions, known: pa.Table):
        self._sources, self._options, self._known = sources, options, known
        self.known_files = len(known)
        self.changed: dict[int, bool] = {}
        self.removed: list[int] = []
        self.ignored, self.skipped = Counter[str](), Counter[str]()
        self.has_excluded = False
        self.hashes = array("q")

    def records(self) -> pa.Table:
        """The records of new files, and newer ones of known files.

        Raises UsageError, ManifestError and NoInputError.
        """
        return pa.concat_tables(
            table for source in self._sources for table in self._source_records(source)
        )

    def _source_records(self, source: SourceFiles) -> Iterator[pa.Table]:
        known = np.flatnonzero(self._known["source"].to_numpy() == source.number)
        if source.name == "-":
            listed = make_table(self._stdin_records(source.number))
            yield self._following(known, listed) if len(known) else listed
            return
        listed = make_table(source.records())
        self.ignored += source.ignored
        self.has_excluded |= source.has_excluded
        if pc.any(pc.equal(listed["kind"], IMAGE)).as_py():
            check_columns(display_name(source.name), self._options)
        if len(known):
            yield from self._compared(source, known, listed)
        else:
            yield self._scanned(source, listed)

    def _stdin_records(self, source: int) -> Iterator[FileRecord]:
        stdin = Stdin(self._options)
        if sys.stdin is None:
            raise UsageError(f"{STDIN_NAME} is closed", hint="name a folder, or pipe paths in")
        if not self._options.spool:
            yield FileRecord(source, NAMED, STDIN, rows=None)
            return
        for number, record in enumerate(stdin.read(source)):
            if self._options.names.accepts(stdin.item(record, number).id):
                self._options.track(1)
                yield record

    def _scanned(self, source: SourceFiles, listed: pa.Table) -> pa.Table:
        """The records of new files; tables are scanned."""
        if not pc.any(pc.equal(listed["kind"], TABLE)).as_py():
            return listed
        return make_table(
            self._scan(self._open(source, record)) if record.kind == TABLE else record
            for record in read_records(listed)
        )

    def _open(self, source: SourceFiles, record: FileRecord) -> Table:
        options = self._options
        names = source.names_in(record.place, record.name)  # which may choose all rows of the file
        options = options if names is None else replace(options, names=names)
        return source.open_table(record, options)

    def _scan(self, table: Table, mark: Mark = START) -> FileRecord:
        with usage_errors(table.name):
            self.hashes.extend(table.scan(mark))
        self.skipped += Counter(dict(table.record.skipped or ()))
        self.has_excluded |= table.has_excluded
        return table.record

    def no_input(self, *, has_only_tables: bool) -> NoInputError:
        """The error for sources without items."""
        names = (STDIN_NAME if source.name == "-" else source.name for source in self._sources)
        shown = ", ".join(map(display_name, names))
        if self.has_excluded:
            message = f"no image in {shown} matches <--include=> and <--exclude=>"
            return NoInputError(message, hint=PATTERNS_HINT)
        if has_only_tables and not self.skipped:
            message = f"{shown} {'has' if len(self._sources) == 1 else 'have'} no rows"
            return NoInputError(message, hint="a manifest needs a row for each image")
        return NoInputError(f"no image in {shown}", hint=no_input_hint(self.ignored + self.skipped))

    # --- known files

    def _following(self, known: np.ndarray, listed: pa.Table) -> pa.Table:
        """The lines of standard input after the known lines, which must be the same."""
        before = self._known["name"].take(pa.array(known))
        count = min(len(before), len(listed))
        is_same = pc.equal(before[:count], listed["name"][:count]).to_numpy()
        if count < len(before) or not is_same.all():
            first = int(np.argmin([*is_same, False]))
            self.changed[int(known[first])] = False
        return listed.slice(len(before))

    def _compared(
        self, source: SourceFiles, known: np.ndarray, listed: pa.Table
    ) -> Iterator[pa.Table]:
        """The records of new files, then newer ones of known files."""
        before = self._known.take(pa.array(known))
        names = before["name"].combine_chunks()
        is_here = pc.is_in(names, value_set=listed["name"].combine_chunks())
        self.removed += known[~np.asarray(is_here)].tolist()
        # the last of several records of a file has its newest size and time
        firsts = pc.index_in(listed["name"], value_set=names)
        lasts = pc.index_in(listed["name"], value_set=names[::-1])
        is_new = pc.is_null(firsts)
        yield self._scanned(source, listed.filter(is_new))
        latest = known[len(known) - 1 - lasts.drop_null().to_numpy()]
        known_files = listed.filter(pc.invert(is_new))
        is_other = np.zeros(len(known_files), bool)
        for name in ("size", "mtime_ns"):
            is_equal = pc.equal(known_files[name], self._known[name].take(pa.array(latest)))
            is_other |= ~is_equal.fill_null(True).to_numpy()
        changed = np.flatnonzero(is_other)
        numbers = known[firsts.drop_null().to_numpy()][changed].tolist()
        records = read_records(known_files.take(pa.array(changed)))
        earlier = read_records(self._known.take(pa.array(latest[changed])))
        yield make_table(map(self._newer, [source] * len(changed), records, earlier, numbers))

    def _newer(
        self, source: SourceFiles, record: FileRecord, earlier: FileRecord, first: int
    ) -> FileRecord:
        """The new record of a file that differs from its latest one; `first` is its first one."""
        if record.kind == earlier.kind == TABLE:
            table = self._open(source, record._replace(columns=earlier.columns))
            mark = table.grown_from(earlier)
            if mark is not None:
                return self._scan(table, mark)
            if record.size == earlier.size and table.is_touched_only(earlier):
                return record._replace(rows=0, digest=earlier.digest, columns=earlier.columns)
        self.changed[first] = record.size == earlier.size
        return record._replace(rows=0, digest=earlier.digest, columns=earlier.columns)


def no_columns(name: str, column: str) -> UsageError:
    """The error for a column of images or texts that are not in a manifest."""
    return UsageError(
        f"{name} has no column {column!r}",
        hint="name a manifest with this column (images alone have no columns); to write braces in "
        "a prompt, double them: {{ and }}",
    )


def check_columns(name: str, options: ReadOptions) -> None:
    """Raise UsageError if options name columns, and the images have no manifest."""
    columns = [*(column.source for column in named_columns(options.keep)), *options.fields]
    columns += ["*"] if ALL in options.keep else []
    if columns:
        raise no_columns(name, columns[0])
    if options.requires_prompts:
        raise UsageError(
            f"{name} has no prompts",
            hint='pass <--prompt "what is in the image?">, or a manifest with prompts',
        )
    if options.choices_column is not None:
        raise UsageError(
            f"{name} has no choices",
            hint="pass <--choice=>, or a manifest with a column of choices",
        )


def check_unique(hashes: array[int], ids: Callable[[], Iterator[tuple[str, str]]]) -> None:
    """Raise ManifestError for a repeated id, with both positions.

    `hashes` are the hashes of all ids. If two are equal, `ids` reads all ids with their positions.
    """
    ordered = np.sort(np.frombuffer(hashes, np.int64))
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]][:MAX_SUSPECTS].tolist())
    positions: dict[str, str] = {}
    for name, position in ids() if suspects else ():
        if hash(name) in suspects:
            if name in positions:
                raise repeated_id(name, positions[name], position)
            positions[name] = position
