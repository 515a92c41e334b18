"""Files of vectors, read block by block: Parquet, folders of it, and JSON lines.

E  size of a vector · N  vectors of a block
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet

from pgcli.errors import NoInputError, UsageError
from pgcli.output.lines import read_rows
from pgcli.output.reader import read_batches, result_files
from pgcli.rows import finite_number
from pgcli.search.nearest import BLOCK_ROWS, Block, Vectors, float32, lengths
from pgcli.text import count

EMBEDDING = "embedding"
MODEL = "model"
#: The columns that name a row, if a file has them.
NAMES = ("id", "image", "text", "index")
#: The columns of an image's size.
SIZE = ("width", "height")
#: Normalised float16 vectors have lengths within this distance of 1.
LENGTH_ERROR = 0.01
HINT = "name what pgcli embed wrote: a .parquet or .jsonl file, or a folder of Parquet files"
ONE_MODEL = "search files of one model at a time"


class VectorFiles:
    """The vectors of several files and folders, in their order; each iteration reads them again.

    `rows` counts all rows of the last iteration, `nulls` the skipped rows without a vector, and
    `scaled` the rows with a vector that was not normalised. `model` is the model of the rows so
    far.
    """

    def __init__(self, paths: Sequence[Path]):
        self.paths = paths
        self.rows = self.nulls = self.scaled = 0
        self.model: str | None = None
        self._width: int | None = None
        self.files = [
            (number, file) for number, path in enumerate(paths) for file in result_files(path)
        ]

    @property
    def width(self) -> int:
        """The size of the vectors. Raises NoInputError if no row has one, and as iterating does."""
        if self._width is None:
            next(iter(self))
        assert self._width is not None
        return self._width

    def __iter__(self) -> Iterator[Block]:
        """The numbers of some rows among all rows, and their normalised vectors (N, E), in order.

        Raises UsageError for anything that is not rows with vectors of one size and one model, and
        NoInputError if no row has a vector.
        """
        self.rows = self.nulls = self.scaled = 0
        for _, file in self.files:
            for batch in read_batches(file, (EMBEDDING, MODEL), BLOCK_ROWS):
                check_type(batch[EMBEDDING].type, file)
                first, self.rows = self.rows, self.rows + len(batch)
                numbers = first + np.flatnonzero(batch[EMBEDDING].is_valid().to_numpy(False))
                self.nulls += len(batch) - len(numbers)
                if len(numbers):
                    self._check_model(batch[MODEL].unique().to_pylist(), file)
                    yield numbers, self._vectors(batch[EMBEDDING].drop_null(), file, numbers)
        if self.nulls == self.rows:
            names = ", ".join(map(str, self.paths))
            raise NoInputError(
                f"no vectors in {names} ({count(self.rows, 'row')})",
                hint=f"pgcli embed writes them; {known_columns(self.files[0][1])}",
            )

    def names(self, rows: Collection[int], *, sizes: bool = False) -> dict[int, dict[str, Any]]:
        """The columns NAMES of the rows with these numbers, and the number of the path of each.

        The id is the row's, else the row number; `image` and `text` are None unless they are texts.
        With `sizes`, `size` is width and height, None if unknown. Raises UsageError for unreadable
        files.
        """
        wanted, first, named = np.sort(np.array([*rows], np.int64)), 0, dict[int, dict[str, Any]]()
        for path, file in self.files:
            for batch in read_batches(file, (*NAMES, *SIZE) if sizes else NAMES, BLOCK_ROWS):
                inside = wanted[(wanted >= first) & (wanted < first + len(batch))]
                for row in inside.tolist():
                    (values,) = batch.slice(row - first, 1).to_pylist()
                    image, text = (
                        value if isinstance(value, str) else None
                        for value in (values["image"], values["text"])
                    )
                    id_ = str(row if values["id"] is None else values["id"])
                    named[row] = {"id": id_, "image": image, "text": text, "path": path}
                    named[row]["index"] = -1 if values["index"] is None else values["index"]
                    if sizes:
                        sides = [int(finite_number(values[name]) or 0) for name in SIZE]
                        named[row]["size"] = sides if all(sides) else None
                first += len(batch)
        return named

    def _vectors(self, column: pyarrow.Array, file: Path, numbers: NDArray[np.int64]) -> Vectors:
        """The normalised vectors (N, E) of rows. Raises UsageError."""

        def name(index: int) -> str:
            return f"{file}: the vector of row {numbers[index] + 1:,}"

        counts = compute.list_value_length(column).to_numpy(False)
        width = counts[0] if self._width is None else self._width
        if not width:
            raise UsageError(f"{name(0)} is empty", hint=HINT)
        if len(odd := np.flatnonzero(counts != width)):
            raise UsageError(
                f"{name(int(odd[0]))} has {counts[odd[0]]} dimensions, earlier vectors have "
                f"{width}",
                hint=ONE_MODEL,
            )
        self._width = int(width)
        vectors = float32(column.flatten().to_numpy(False)).reshape(-1, self._width)
        sizes = lengths(vectors, name)
        self.scaled += int(np.count_nonzero(np.abs(sizes - 1) > LENGTH_ERROR))
        unit: Vectors = np.divide(vectors, sizes[:, None])
        return unit

    def _check_model(self, models: Iterable[str | None], file: Path) -> None:
        """Raise UsageError for rows of another model than those before."""
        for model in filter(None, models):
            if self.model not in (None, model):
                raise UsageError(
                    f"{file} has vectors of the model {model}, earlier files of {self.model}; "
                    "they cannot be compared",
                    hint=ONE_MODEL,
                )
            self.model = model


def check_type(kind: pyarrow.DataType, file: Path) -> None:
    """Raise UsageError for vectors of another type than lists of floats."""
    if pyarrow.types.is_null(kind):
        hint = f"{known_columns(file)}; {HINT}"
        raise UsageError(f"{file} has no column {EMBEDDING}", hint=hint)
    lists = (pyarrow.FixedSizeListType, pyarrow.ListType, pyarrow.LargeListType)
    if not isinstance(kind, lists) or not pyarrow.types.is_floating(kind.value_type):
        raise UsageError(
            f"{file}: the column {EMBEDDING} has the type {kind}, not lists of floats", hint=HINT
        )


def known_columns(file: Path) -> str:
    """Names the columns of a Parquet file, or of the first row of a file of lines."""
    is_table = file.suffix.lower() == ".parquet"
    names = parquet.read_schema(file).names if is_table else next(read_rows(file), {})
    return f"its columns are: {', '.join(names)}"
