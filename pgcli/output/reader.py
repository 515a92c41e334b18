"""Reads the files that pgcli writes: rows one by one, also of a running run, or batches of columns.

The rows of an unfinished run are in the output in its final form, and as lines in the files of
`OUTPUT.pgcli/open/`, which follow the final form, or overlap with it and with each other. Each
shard has its own `open/`, in `OUTPUT.pgcli/shard-I-of-N/`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.errors import UsageError
from pgcli.output import PART, PART_ENDING, load_format, output_endings, part_format
from pgcli.output.lines import read_lines, read_rows
from pgcli.records import EMBEDDING_TASK_COLUMNS
from pgcli.rows import RowSchema, base_of, task_of, with_embedding_list
from pgcli.stores.files import open_regular, refuse_pointer

if TYPE_CHECKING:
    import pyarrow

Row = Mapping[str, Any]
#: A row with its number in the output; None for a line that is not a row.
IndexedRow = tuple[int, Row | None]

OPEN = "open"
#: The name of an open file: the number of its first row.
OPEN_FILE = re.compile(r"(\d{12})\.jsonl")
#: The folder of a shard in the state folder, with its own open files.
SHARD_FOLDERS = "shard-*-of-*"
#: Every result file of pgcli has these columns, or the ones of its command.
REQUIRED_COLUMNS = {"index", "id", "image", "task", "prompt", "answer", "boxes", "error"}
REQUIRED_COLUMNS |= set(EMBEDDING_TASK_COLUMNS)
#: The columns of `pgcli search`: the query or group of a row's image, and the similarity.
QUERY_COLUMNS, SIMILARITY = ("query", "group"), "similarity"
INTEGERS = ("index", "width", "height", "tokens", "batch")
DAMAGED = "is not a result row: it is truncated or damaged"
HINT = "name the file or folder that a command wrote with <-o>"


def read_results(path: Path, *, exact: bool = False, hits: bool = False) -> Iterator[Row]:
    """The rows of an output, complete or not, or of a result file without its state folder.

    With `exact`, kept columns of Parquet files are cells, from which `write_result_file` makes
    columns of the same types again. With `hits`, the file may have rows of `pgcli search` instead.
    Ignores a truncated last row. Raises UsageError for any other content.
    """
    with reading(path):
        check_results(path)
        yield from _valid_rows(path, exact=exact, hits=hits)


def read_batches(file: Path, columns: Sequence[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
    """These columns of a file in batches of about so many rows; missing columns are null.

    Values stay in Arrow's memory, and lines get the types of pgcli's columns. Raises UsageError.
    """
    import pyarrow

    with reading(file), open_regular(file) as stream:
        for batch in load_format(file).batches(stream, columns, rows):
            names = batch.schema.names
            arrays = [batch[n] if n in names else pyarrow.nulls(len(batch)) for n in columns]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=[*columns])


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A block that reads an output; raises UsageError if it is unreadable."""
    try:
        yield
    except _unreadable() as problem:
        reason = getattr(problem, "strerror", None) or str(problem).partition("\n")[0]
        raise UsageError(
            f"{path} cannot be read: {reason}",
            hint=f"name a {output_endings()} file, or a folder of Parquet files",
        ) from problem


def _unreadable() -> tuple[type[Exception], ...]:
    """The exceptions for unreadable files; a function, because pyarrow is slow to import."""
    known = (OSError, ValueError, RecursionError)
    pyarrow = sys.modules.get("pyarrow")
    return known if pyarrow is None else (*known, pyarrow.ArrowException)


def check_results(path: Path) -> None:
    """Raise UsageError if the path cannot be a run's output. Raises OSError."""
    has_state = state_folder(path).exists()
    if not path.exists() and not has_state:
        raise UsageError(f"{path} does not exist", hint=HINT)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path} is not a regular file", hint=HINT)
    if path.is_file():
        if path.suffix.lower() in (".npy", ".npz"):
            raise UsageError(f"{path} is a file of NumPy arrays, not of rows", hint=HINT)
        refuse_pointer(path)
    if path.is_dir() and not has_state and not any(path.glob(f"*{PART_ENDING}")):
        raise UsageError(f"the folder {path} has no result files", hint=HINT)


def result_files(path: Path) -> list[Path]:
    """The complete files of an output: itself, or a folder's files in order. Raises UsageError."""
    with reading(path):
        check_results(path)
    files = sorted(path.glob(f"*{PART_ENDING}")) if path.is_dir() else [path]
    if not any(file.exists() for file in files):
        raise UsageError(
            f"{path} has no complete file yet: its run is not finished",
            hint=f"pgcli status {path} shows the progress",
        )
    return files


def indexed_rows(path: Path, *, exact: bool = False) -> Iterator[IndexedRow]:
    """Every saved row once, with its number, in order; skips rows that are not saved yet.

    Raises pyarrow's exceptions for an unreadable file, and ValueError for a row that is nested too
    deeply.
    """
    next_row, sources = 0, find_sources(path)
    kept: Row | None = None  # the kept columns, which open files may lack
    while sources:
        source = sources.pop(0)
        try:
            for number, row in enumerate(source.read(exact=exact), source.first):
                if number < next_row:
                    continue
                if row is None:
                    if any(later.first <= number < later.end for later in sources):
                        break  # the line is still being appended, from a file with this row
                elif source.is_open:
                    row = {**(kept or {}), **with_embedding_list(row)}
                elif kept is None:
                    kept = dict.fromkeys(RowSchema.of(row).keep)
                yield number, row
                next_row = number + 1
        except FileNotFoundError:  # its rows have moved to the final form meanwhile
            if not source.is_open:
                raise
            sources = [source for source in find_sources(path) if source.end > next_row]


def read_settings(output: Path) -> Mapping[str, Any]:
    """The settings in a result file, or in the first file of a folder; empty without any.

    Files that `pgcli search` wrote have them too.
    """
    parts = sorted(output.glob(f"*{PART_ENDING}")) if output.is_dir() else [output]
    return load_format(parts[0]).settings(parts[0]) if parts else {}


def query_column(row: Row) -> str | None:
    """The column of QUERY_COLUMNS in a row of `pgcli search`; None for any other row."""
    is_hit = {"id", "image"} <= row.keys() and "error" not in row
    is_hit = is_hit and type(row.get(SIMILARITY)) in (float, int)
    return next((n for n in QUERY_COLUMNS if is_hit and row.get(n) is not None), None)


def state_folder(output: Path) -> Path:
    """`OUTPUT.pgcli`, beside the output: inside a data folder, other readers would reject it."""
    path = output if output.name else output.resolve()  # `.` and `rows/..`
    return path.with_name(f"{path.name}.pgcli") if path.name else path / ".pgcli"


@dataclass(frozen=True)
class RowSource:
    """A file with consecutive rows, from `first` to before `end`, which is infinity if unknown.

    An open file has lines that are not yet in the output.
    """

    path: Path
    first: int = 0
    end: float = inf
    is_open: bool = False

    def read(self, *, exact: bool = False) -> Iterator[Row | None]:
        """The rows in order; None for a line of an output that is not a row."""
        if self.is_open:
            return read_rows(self.path)
        return load_format(self.path).read(self.path, exact=exact)


def find_sources(output: Path) -> list[RowSource]:
    """The files of an output, by their rows; of several files with a row, the first is read."""
    # list open files first: a file that disappears has moved into the final form
    state = state_folder(output)
    folders = [state / OPEN, *state.glob(f"{SHARD_FOLDERS}/{OPEN}")]
    sources = [source for folder in folders for source in _open_files(folder)]
    if output.is_dir():
        sources += _parts(output)
    elif output.is_file():
        sources.append(RowSource(output))
    return sorted(sources, key=lambda s: (s.first, s.is_open, -s.end))


def _open_files(folder: Path) -> Iterator[RowSource]:
    for file in folder.iterdir() if folder.is_dir() else ():
        if match := OPEN_FILE.fullmatch(file.name):
            try:
                rows = sum(line.endswith(b"\n") for line in read_lines(file))
            except FileNotFoundError:
                continue
            first = int(match[1])
            yield RowSource(file, first, first + rows, is_open=True)


def _parts(folder: Path) -> Iterator[RowSource]:
    """The files of a folder in order; files of no run follow the file before them."""
    end, format = 0, part_format()
    for file in sorted(file for file in folder.iterdir() if PART.fullmatch(file.name)):
        info = format.part_info(file)
        first = end if info is None else info.first
        end = first + (format.count(file) if info is None else info.rows)
        yield RowSource(file, first, end)


def _valid_rows(path: Path, *, exact: bool, hits: bool) -> Iterator[Row]:
    """The rows before a truncated last one. Raises UsageError for anything that is not a row."""
    is_cut, query = False, None
    for number, row in indexed_rows(path, exact=exact):
        if row is None and number and not is_cut:
            is_cut = True
            continue
        if row is not None and hits and not number:
            query = query_column(row)
        problem = DAMAGED if is_cut or row is None else _problem(row, query)
        if problem:
            command = "an answering command" if query is None else "pgcli search"
            raise UsageError(
                f"{path}: row {number + 1:,} {problem}", hint=f"name a file that {command} wrote"
            )
        assert row is not None
        yield with_integers(row)


def with_integers(row: Row) -> Row:
    """The row without fractions of 0 in columns of integers; pandas writes them beside nulls."""
    integers = {
        n: int(x) for n in INTEGERS if isinstance(x := row.get(n), float) and x.is_integer()
    }
    return {**row, **integers} if integers else row


def _problem(row: Row, query: str | None) -> str:
    """Why the row is not one of a run, or of a search with this column; empty if it is."""
    if query is not None:
        is_hit = query_column(row) == query
        return "" if is_hit else "is not a search result"
    missing = missing_columns(tuple(row), task_of(row))
    return f"is not a result row: it has no {', '.join(missing)}" if missing else ""


@lru_cache(maxsize=64)  # most rows of a file have the same columns
def missing_columns(names: tuple[str, ...], task: str | None) -> list[str]:
    """The required columns that a row with these columns lacks."""
    row = {**dict.fromkeys(names), "task": task}
    return [repr(name) for name in base_of(row) if name not in names and name in REQUIRED_COLUMNS]
