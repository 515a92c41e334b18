"""Files of vectors, read block by block: Parquet, folders of it, and JSON lines.

E  size of a vector · N  vectors of a block
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.json
from numpy.typing import NDArray
from pyarrow import compute, parquet

from pgcli.box_filter import number
from pgcli.errors import NoInputError, UsageError
from pgcli.output.lines import parse_row
from pgcli.output.reader import state_folder
from pgcli.search.nearest import BLOCK_ROWS, Block, Vectors, float32, lengths
from pgcli.stores.files import open_regular, refuse_pointer

EMBEDDING = "embedding"
MODEL = "model"
#: The columns that name a row, where a file has them.
NAMES = ("id", "image", "text", "index")
#: Those of the size of an image.
SIZE = ("width", "height")
#: Of JSON lines, in which a list of integers, or nulls alone, have no type of their own.
KINDS = {
    EMBEDDING: pyarrow.list_(pyarrow.float32()),
    "index": pyarrow.int64(),
    **dict.fromkeys(SIZE, pyarrow.float64()),
}
MAX_LINE_BYTES = 2**24
#: Lengths further than this from 1 are not those of normalised vectors in float16.
LENGTH_ERROR = 0.01
#: What pyarrow and the operating system raise for a file that cannot be read.
UNREADABLE = (OSError, ValueError, pyarrow.ArrowException)
HINT = "name what pgcli embed wrote: a .parquet or .jsonl file, or a folder of Parquet files"
ONE_MODEL = "search files of one model at a time"


class VectorFiles:
    """The vectors of several files and folders, in their order; each iteration reads them again.

    `rows` counts all rows read by the last iteration, `nulls` those without a vector, which are
    left out, and `scaled` those whose vector was not normalised. `model` is the model that the
    rows so far name.
    """

    def __init__(self, paths: Sequence[Path]):
        self.paths = paths
        self.rows = self.nulls = self.scaled = 0
        self.model: str | None = None
        self._width: int | None = None
        self._files = [
            (number, file) for number, path in enumerate(paths) for file in files_of(path)
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
        for _, file in self._files:
            with reading(file):
                for batch in batches(file, (EMBEDDING, MODEL)):
                    first, self.rows = self.rows, self.rows + len(batch)
                    numbers = first + np.flatnonzero(batch[EMBEDDING].is_valid().to_numpy(False))
                    self.nulls += len(batch) - len(numbers)
                    if len(numbers):
                        self._check_model(batch[MODEL], file)
                        yield numbers, self._vectors(batch[EMBEDDING].drop_null(), file, numbers)
        if self.nulls == self.rows:
            names = ", ".join(map(str, self.paths))
            of = f", of {self.rows:,} rows" if self.rows else ""
            raise NoInputError(f"no vectors in {names}{of}", hint="pgcli embed writes them")

    def names(self, rows: Collection[int], *, sizes: bool = False) -> dict[int, dict[str, Any]]:
        """The columns NAMES of the rows with these numbers, and the number of the path of each.

        An id is that of the row, else its number; `image` and `text` are None where they are not
        texts. With `sizes`, the `size` is width and height, None where they are not known. Raises
        UsageError for files that cannot be read any more.
        """
        wanted, first, named = np.sort(np.array([*rows], np.int64)), 0, dict[int, dict[str, Any]]()
        for path, file in self._files:
            with reading(file):
                for batch in batches(file, (*NAMES, *SIZE) if sizes else NAMES):
                    inside = wanted[(wanted >= first) & (wanted < first + len(batch))]
                    for row in inside.tolist():
                        (values,) = batch.slice(row - first, 1).to_pylist()
                        image, text = map(text_or_none, (values["image"], values["text"]))
                        id_ = str(row if values["id"] is None else values["id"])
                        named[row] = {"id": id_, "image": image, "text": text, "path": path}
                        named[row]["index"] = -1 if values["index"] is None else values["index"]
                        if sizes:
                            sides = [int(number(values[name]) or 0) for name in SIZE]
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
                f"{name(int(odd[0]))} has {counts[odd[0]]} numbers, those before have {width}",
                hint=ONE_MODEL,
            )
        self._width = int(width)
        vectors = float32(column.flatten().to_numpy(False)).reshape(-1, self._width)
        sizes = lengths(vectors, name)
        self.scaled += int(np.count_nonzero(np.abs(sizes - 1) > LENGTH_ERROR))
        unit: Vectors = np.divide(vectors, sizes[:, None])
        return unit

    def _check_model(self, models: pyarrow.Array, file: Path) -> None:
        """Raise UsageError for rows of another model than those before."""
        for model in filter(None, models.unique().to_pylist()):
            if self.model not in (None, model):
                raise UsageError(
                    f"{file} has vectors of the model {model}, and others are of {self.model}: "
                    "they cannot be compared",
                    hint=ONE_MODEL,
                )
            self.model = model


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """A block that reads a file; raises UsageError for what cannot be read."""
    try:
        yield
    except UNREADABLE as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        message = f"{file} cannot be read: {reason.splitlines()[0]}"
        raise UsageError(message, hint=HINT) from problem


def batches(file: Path, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """Some rows of a file at a time with these columns, null where the file has none."""
    with open_regular(file) as stream:
        if is_parquet(file):
            with parquet.ParquetFile(stream, pre_buffer=False) as opened:
                known = opened.schema_arrow.names
                if EMBEDDING not in known:
                    raise UsageError(
                        f"{file} has no column {EMBEDDING}, only {', '.join(known)}", hint=HINT
                    )
                present = [name for name in columns if name in known]
                for batch in opened.iter_batches(BLOCK_ROWS, columns=present):
                    yield with_columns(batch, columns, file)
        elif len(lines := whole_lines(stream)):
            reader = pyarrow.json.open_json(
                pyarrow.BufferReader(lines),
                pyarrow.json.ReadOptions(block_size=MAX_LINE_BYTES),
                pyarrow.json.ParseOptions(
                    pyarrow.schema([(name, KINDS.get(name, pyarrow.string())) for name in columns]),
                    unexpected_field_behavior="ignore",
                ),
            )
            yield from reader


def with_columns(
    batch: pyarrow.RecordBatch, columns: Sequence[str], file: Path
) -> pyarrow.RecordBatch:
    """The batch with all of the columns. Raises UsageError for vectors that are not lists."""
    arrays = [
        batch[name] if name in batch.schema.names else pyarrow.nulls(len(batch), pyarrow.string())
        for name in columns
    ]
    if EMBEDDING in columns:
        kind = batch[EMBEDDING].type
        lists = (pyarrow.FixedSizeListType, pyarrow.ListType, pyarrow.LargeListType)
        if not isinstance(kind, lists) or not pyarrow.types.is_floating(kind.value_type):
            raise UsageError(
                f"{file}: the column {EMBEDDING} has the type {kind}, not lists of floats",
                hint=HINT,
            )
    return pyarrow.RecordBatch.from_arrays(arrays, names=[*columns])


def whole_lines(stream: Any) -> pyarrow.Buffer:
    """The lines of a file; without a last one that has no end, as of a run that goes on."""
    if not stream.seek(0, 2):
        return pyarrow.py_buffer(b"")
    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    end = mapped.rfind(b"\n") + 1
    if parse_row(mapped[end:] + b"\n") is not None:
        end = len(mapped)
    return pyarrow.py_buffer(mapped).slice(0, end)


def files_of(path: Path) -> list[Path]:
    """The files of a path: itself, or the Parquet files of a folder. Raises UsageError."""
    if path.is_dir():
        if files := sorted(path.glob("*.parquet")):
            return files
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
    with reading(path):
        refuse_pointer(path)
    return [path]


def is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def text_or_none(value: Any) -> str | None:
    """The value if it is a text."""
    return value if isinstance(value, str) else None
