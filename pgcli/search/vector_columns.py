"""The columns of files of vectors: lists of numbers, and what names their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from pgcli.errors import UsageError
from pgcli.search.nearest import Rows, Vectors, float32

EMBEDDING = "embedding"
#: The columns that are read beside the vectors, where a file has them.
NAMES = ("id", "image", "text", "model")
INDEX = "index"
HINT = "name what pgcli embed wrote: a .parquet or .jsonl file, or a folder of Parquet files"


class PlaceInFile(NamedTuple):
    """Names a vector in an error message: its file, and its row among all rows of the input."""

    file: Path
    first: int
    places: Rows

    def name(self, number: int) -> str:
        return f"{self.file}: the vector of row {self.first + int(self.places[number]) + 1:,}"


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
