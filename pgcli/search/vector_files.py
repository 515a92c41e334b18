"""Reads the vectors of result files block by block: Parquet, folders of it, and JSON lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
from pyarrow import compute

from pgcli.errors import NoInputError, UsageError
from pgcli.output.reader import state_folder
from pgcli.search.nearest import Rows, Vectors, lengths
from pgcli.search.vector_columns import EMBEDDING, HINT, INDEX, NAMES, PlaceInFile, matrix
from pgcli.search.vector_tables import jsonl_names, parquet_names, read_jsonl, read_parquet

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
