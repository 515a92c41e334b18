"""Reads the vectors of result files block by block: Parquet, folders of it, and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet

from pgcli.errors import NoInputError, UsageError
from pgcli.regular_file import open_regular
from pgcli.search.nearest import BLOCK_ROWS, Rows, Vectors, float32, lengths
from pgcli.state.record_file import parse_row, read_lines
from pgcli.state.state_folder import state_folder

EMBEDDING = "embedding"
#: The columns that are read beside the vectors, where a file has them.
NAMES = ("id", "image", "text", "model")
INDEX = "index"
HINT = "name what pgcli embed wrote: a .parquet or .jsonl file, or a folder of Parquet files"
#: Lengths further than this from 1 are not those of normalised vectors in float16.
LENGTH_ERROR = 0.01
#: What pyarrow and the operating system raise for a file that cannot be read.
UNREADABLE = (OSError, ValueError, pyarrow.ArrowException)


class VectorBlock(NamedTuple):
    """Consecutive rows that have a vector.

    `rows` are their numbers among all rows of all files, `file` is the number of their file,
    `names` has their columns NAMES as text or null, and INDEX as numbers or null.
    """

    rows: Rows
    vectors: Vectors
    names: pyarrow.Table
    file: int

    def name(self, place: int) -> VectorName:
        """What names the row at a place in the block."""
        return name_at(self.names, place, int(self.rows[place]), self.file)


@dataclass(frozen=True, slots=True)
class VectorName:
    """The columns of a row that name it, and the number of its file; `index` is -1 if unknown."""

    id: str
    image: str | None
    text: str | None
    index: int
    file: int


def name_at(names: pyarrow.Table, place: int, row: int, file: int) -> VectorName:
    """What names the row at a place of the columns NAMES; without an id it is the row's number."""
    id, image, text, index = (
        names.column(name)[place].as_py() for name in ("id", "image", "text", INDEX)
    )
    return VectorName(
        str(row) if id is None else id, image, text, -1 if index is None else index, file
    )


@dataclass
class VectorStats:
    """What was read: all rows, those without a vector, of texts, and not normalised."""

    rows: int = 0
    errors: int = 0
    texts: int = 0
    scaled: int = 0


class VectorFiles:
    """The vectors of several files and folders, in their order; each iteration reads them again.

    `stats` are those of the last iteration. Iterating raises UsageError for anything that is not
    rows with vectors of one size and one model.
    """

    def __init__(self, paths: Sequence[Path]):
        self.paths = paths
        self.stats = VectorStats()
        self._parts = [find_parts(path) for path in paths]
        self._model: str | None = None
        self._width: int | None = None

    def head(self) -> VectorBlock:
        """The first block. Raises NoInputError if no row has a vector."""
        for block in self:
            return block
        names = ", ".join(map(str, self.paths))
        found = f", of {self.stats.rows:,} rows" if self.stats.rows else ""
        raise NoInputError(f"no vectors in {names}{found}", hint="pgcli embed writes them")

    @property
    def model(self) -> str | None:
        """The model that the rows of the blocks so far name; None where they name none."""
        return self._model

    def __iter__(self) -> Iterator[VectorBlock]:
        self.stats = stats = VectorStats()
        for number, parts in enumerate(self._parts):
            for part in parts:
                read = read_parquet if is_parquet(part) else read_jsonl
                with reading(part):
                    for table in read(part):
                        found = self._block(table, part, number)
                        stats.rows += len(table)
                        if found is not None:
                            yield found

    def names(self, rows: Collection[int]) -> dict[int, VectorName]:
        """What names the rows of these numbers, without reading vectors.

        Raises UsageError for files that cannot be read any more.
        """
        wanted, first, found = np.sort(np.array([*rows], np.int64)), 0, dict[int, VectorName]()
        for number, parts in enumerate(self._parts):
            for part in parts:
                read = parquet_names if is_parquet(part) else jsonl_names
                with reading(part):
                    names, places, count = read(part, wanted - first)
                for place, row in enumerate(places.tolist()):
                    found[row + first] = name_at(names, place, row + first, number)
                first += count
        return found

    def _block(self, table: pyarrow.Table, part: Path, number: int) -> VectorBlock | None:
        """The rows that have a vector, after checks; None if no row has one."""
        column, first = table.column(EMBEDDING), self.stats.rows
        has_vector = column.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(has_vector)
        self.stats.errors += len(table) - len(places)
        if not len(places):
            return None
        names = table.select([*NAMES, INDEX]).filter(column.is_valid())
        place = PlaceInFile(part, first, places)
        vectors = matrix(column.drop_null(), place)
        self._check_size(vectors, part)
        self._check_model(names.column("model"), place)
        self.stats.texts += len(names) - names.column("text").null_count
        sizes = lengths(vectors, place.name)
        self.stats.scaled += int(np.count_nonzero(np.abs(sizes - 1) > LENGTH_ERROR))
        vectors = np.divide(vectors, sizes[:, None])
        return VectorBlock(places + first, vectors, names, number)

    def _check_size(self, vectors: Vectors, part: Path) -> None:
        """Raise UsageError for vectors of another size than those before."""
        if self._width not in (None, vectors.shape[1]):
            raise UsageError(
                f"{part} has vectors of {vectors.shape[1]} numbers, those before have "
                f"{self._width}",
                hint="search files of one model at a time",
            )
        self._width = vectors.shape[1]

    def _check_model(self, models: pyarrow.ChunkedArray, place: PlaceInFile) -> None:
        """Raise UsageError for rows of another model than those before."""
        for model in compute.unique(models.drop_null()).to_pylist():
            if self._model not in (None, model):
                raise UsageError(
                    f"{place.file} has vectors of the model {model}, and others are of "
                    f"{self._model}: they cannot be compared",
                    hint="search files of one model at a time",
                )
            self._model = model


class PlaceInFile(NamedTuple):
    """Names a vector in an error message: its file, and its row among all rows of the input."""

    file: Path
    first: int
    places: Rows

    def name(self, number: int) -> str:
        return f"{self.file}: the vector of row {self.first + int(self.places[number]) + 1:,}"


@contextmanager
def reading(part: Path) -> Iterator[None]:
    """A block that reads a file; raises UsageError for what cannot be read."""
    try:
        yield
    except UNREADABLE as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        message = f"{part} cannot be read: {reason.splitlines()[0]}"
        raise UsageError(message, hint=HINT) from problem


def find_parts(path: Path) -> list[Path]:
    """The files of a path: itself, or the Parquet files of a folder. Raises UsageError."""
    if path.is_dir():
        if parts := sorted(path.glob("*.parquet")):
            return parts
        raise UsageError(f"{path} is a folder without Parquet files", hint=HINT)
    if not path.exists():
        is_begun = state_folder(path).exists()
        why = "has no file yet: its run is not finished" if is_begun else "does not exist"
        hint = f"pgcli status {path} shows how its run stands" if is_begun else HINT
        raise UsageError(f"{path} {why}", hint=hint)
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint=HINT)
    if not is_parquet(path) and path.suffix.lower() not in (".jsonl", ".ndjson"):
        raise UsageError(f"{path} is neither .parquet nor .jsonl", hint=HINT)
    return [path]


def is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def read_parquet(file: Path) -> Iterator[pyarrow.Table]:
    """Blocks of a Parquet file with the columns EMBEDDING and NAMES."""
    with open_regular(file) as stream, parquet.ParquetFile(stream, pre_buffer=False) as opened:
        names = opened.schema_arrow.names
        if EMBEDDING not in names:
            raise no_embedding(file, names)
        columns = [name for name in (EMBEDDING, INDEX, *NAMES) if name in names]
        for batch in opened.iter_batches(BLOCK_ROWS, columns=columns):
            yield with_names(pyarrow.Table.from_batches([batch]), file)


def parquet_names(file: Path, wanted: Rows) -> tuple[pyarrow.Table, Rows, int]:
    """The columns that name these rows of a file, the rows that it has, and the number of all."""
    first, tables, places = 0, [], [wanted[:0]]
    with open_regular(file) as stream, parquet.ParquetFile(stream) as opened:
        columns = [name for name in (*NAMES, INDEX) if name in opened.schema_arrow.names]
        for number in range(opened.num_row_groups):
            count = opened.metadata.row_group(number).num_rows
            inside = wanted[(wanted >= first) & (wanted < first + count)]
            if len(inside):
                group = opened.read_row_group(number, columns=columns)
                found = {name: group.column(name) for name in group.column_names}
                rows = pyarrow.table({EMBEDDING: pyarrow.nulls(count)} | found)
                tables.append(with_names(rows, file).take(inside - first))
                places.append(inside)
            first += count
    empty = with_names(pyarrow.table({EMBEDDING: pyarrow.nulls(0)}), file)
    return pyarrow.concat_tables([empty, *tables]), np.concatenate(places), first


def jsonl_names(file: Path, wanted: Rows) -> tuple[pyarrow.Table, Rows, int]:
    """The columns that name these rows of a file, the rows that it has, and the number of all."""
    rows, places, count, left = [], [], 0, {*wanted.tolist()}
    for number, line in enumerate(read_lines(file)):
        if number in left and (row := parse_row(line.rstrip(b"\n") + b"\n")) is not None:
            rows.append({name: row.get(name) for name in (*NAMES, INDEX)})
            places.append(number)
        count += 1
    return names_table(rows), np.array(places, np.int64), count


def read_jsonl(file: Path) -> Iterator[pyarrow.Table]:
    """Blocks of a file of JSON lines with the columns EMBEDDING and NAMES.

    A last line without an end, as of a run that goes on, is left out.
    """
    lines, number = read_lines(file), 0
    while block := list(islice(lines, BLOCK_ROWS)):
        if not block[-1].endswith(b"\n") and parse_row(block[-1] + b"\n") is None:
            block.pop()
        rows = [json_row(line, file, number + place) for place, line in enumerate(block)]
        number += len(block)
        vectors = list_array([row[EMBEDDING] for row in rows])
        yield names_table(rows).append_column(EMBEDDING, vectors)


def json_row(line: bytes, file: Path, number: int) -> dict[str, Any]:
    """The columns of a line, with the vector as an array. Raises UsageError."""
    row = parse_row(line if line.endswith(b"\n") else line + b"\n")
    where = f"{file}: line {number + 1:,}"
    if row is None:
        raise UsageError(f"{where} is not a JSON object", hint=HINT)
    if EMBEDDING not in row:
        raise no_embedding(f"{where}", list(row))
    values = row[EMBEDDING]
    row[EMBEDDING] = None if values is None else json_vector(values, where)
    return row


def names_table(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """The columns NAMES and INDEX of rows of JSON."""
    indexes = [row.get(INDEX) for row in rows]
    whole = [one if type(one) is int and abs(one) < 2**63 else None for one in indexes]
    names = {name: text_array([row.get(name) for row in rows]) for name in NAMES}
    return pyarrow.table(names | {INDEX: pyarrow.array(whole, pyarrow.int64())})


def json_vector(values: Any, where: str) -> Vectors:
    """A list of numbers as an array. Raises UsageError."""
    is_numbers = isinstance(values, list) and {*map(type, values)} <= {float, int}
    try:
        if is_numbers and values:
            return float32(np.array(values, np.float64))
    except OverflowError:
        pass
    raise UsageError(f"{where}: its embedding is not a list of numbers", hint=HINT)


def list_array(vectors: Sequence[Vectors | None]) -> pyarrow.Array:
    """Arrays as an array of lists of float32."""
    sizes = [0 if vector is None else len(vector) for vector in vectors]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    values = np.concatenate([np.zeros(0, np.float32), *(v for v in vectors if v is not None)])
    is_null = pyarrow.array([vector is None for vector in vectors], pyarrow.bool_())
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values, mask=is_null)


def text_array(values: Sequence[Any]) -> pyarrow.Array:
    """Values of JSON as text; null stays null."""
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value) for value in values
    ]
    safe = [None if text is None else text.encode("utf-8", "replace").decode() for text in texts]
    return pyarrow.array(safe, pyarrow.string())


def with_names(table: pyarrow.Table, file: Path) -> pyarrow.Table:
    """The table with all of NAMES as text and INDEX, null where the file has no such column."""
    columns = {name: table.column(name) for name in table.column_names}
    found = {EMBEDDING: columns[EMBEDDING]}
    for name in (*NAMES, INDEX):
        kind = pyarrow.int64() if name == INDEX else pyarrow.string()
        if name not in columns:
            found[name] = pyarrow.nulls(len(table), kind)
            continue
        try:
            found[name] = columns[name].cast(kind)
        except pyarrow.ArrowException as problem:
            raise UsageError(
                f"{file}: the column {name} has the type {columns[name].type}, not {kind}",
                hint=HINT,
            ) from problem
    return pyarrow.table(found)


def matrix(column: pyarrow.ChunkedArray, place: PlaceInFile) -> Vectors:
    """Lists of numbers as rows of float32. Raises UsageError for lists of several lengths."""
    kind = column.type
    is_list = isinstance(kind, pyarrow.FixedSizeListType | pyarrow.ListType | pyarrow.LargeListType)
    if not is_list or not pyarrow.types.is_floating(kind.value_type):
        raise UsageError(
            f"{place.file}: the column {EMBEDDING} has the type {kind}, not lists of floats",
            hint=HINT,
        )
    counts = compute.list_value_length(column).to_numpy()
    if other := np.flatnonzero(counts != counts[0]).tolist():
        raise UsageError(
            f"{place.name(other[0])} has {counts[other[0]]} numbers, those before have {counts[0]}",
            hint="search files of one model at a time",
        )
    if not counts[0]:
        raise UsageError(f"{place.name(0)} is empty", hint=HINT)
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    flat: NDArray[Any] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return float32(flat).reshape(-1, counts[0])


def no_embedding(where: Path | str, names: Sequence[str]) -> UsageError:
    """The error for rows without vectors."""
    return UsageError(
        f"{where} has no column {EMBEDDING}, only {', '.join(names) or 'none'}", hint=HINT
    )
