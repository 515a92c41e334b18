"""Rows written as one Parquet file, which is there when it is complete and not before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow
from pyarrow import parquet

from pgcli.errors import OutputExists
from pgcli.records import Answer
from pgcli.sinks import kept
from pgcli.sinks.rows import Layout
from pgcli.sinks.writing import sync, writing
from pgcli.state.folder import state_folder

#: A row group ends at so many rows, or sooner at so many bytes held in memory.
ROWS = 10_000
BYTES = 64 * 2**20

REPEATED = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())  # few values, many rows
BOX = pyarrow.struct(
    [
        ("label", pyarrow.string()),
        ("xmin", pyarrow.float64()),
        ("ymin", pyarrow.float64()),
        ("xmax", pyarrow.float64()),
        ("ymax", pyarrow.float64()),
        ("score", pyarrow.float64()),
    ]
)
RLE = pyarrow.struct([("size", pyarrow.list_(pyarrow.int32())), ("counts", pyarrow.string())])
MASK = pyarrow.struct([("codes", pyarrow.list_(pyarrow.int16())), ("rle", RLE)])
CHOICE = pyarrow.struct(
    [("text", pyarrow.string()), ("logprob", pyarrow.float64()), ("probability", pyarrow.float64())]
)
TYPES: Mapping[str, pyarrow.DataType] = {
    "index": pyarrow.int64(),
    "id": pyarrow.string(),
    "image": pyarrow.string(),
    "width": pyarrow.int32(),
    "height": pyarrow.int32(),
    "task": REPEATED,
    "prompt": REPEATED,
    "answer": pyarrow.string(),
    "boxes": pyarrow.list_(BOX),
    "tokens": pyarrow.int32(),
    "finish": REPEATED,
    "logprob": pyarrow.float64(),
    "load_ms": pyarrow.float64(),
    "vision_ms": pyarrow.float64(),
    "prefill_ms": pyarrow.float64(),
    "decode_ms": pyarrow.float64(),
    "batch": pyarrow.int32(),
    "model": REPEATED,
    "error": REPEATED,
    "error_message": pyarrow.string(),
    "masks": pyarrow.list_(MASK),
    "choices": pyarrow.list_(CHOICE),
}


class ParquetSink:
    """Writes parts to the state folder as rows come, and joins them as the output at the end.

    What type a kept column needs is known only then: a manifest may hold whole numbers for a
    million rows and a word in the next. A run that fails leaves neither parts nor output, and an
    output that was to be overwritten as it was.
    """

    def __init__(
        self, output: Path, layout: Layout, *, overwrite: bool, settings: Mapping[str, object]
    ):
        self.output = output
        self.folder = state_folder(output)
        self.whole = self.folder / "whole"
        self.layout = layout
        self.overwrite = overwrite
        self.settings = settings
        self.rows: list[dict[str, Any]] = []
        self.held_bytes = 0
        self.parts: list[Path] = []
        self.kinds: dict[str, set[pyarrow.DataType]] = {name: set() for name in layout.keep}
        self.claimed = False

    def save(self, answer: Answer) -> None:
        if not self.claimed:
            self.claim()
        row = self.layout.row(answer)
        self.rows.append(row)
        self.held_bytes += weight(row)
        if len(self.rows) >= ROWS or self.held_bytes >= BYTES:
            self.write_part()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.clear()

    def claim(self) -> None:
        """Make the state folder ours; one that is there is of a run that goes on or was killed."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=self.overwrite)
            for left in self.folder.glob("part-*"):
                left.unlink()
        self.claimed = True

    def write_part(self) -> None:
        columns = self.layout.columns
        arrays = [pyarrow.array([row[name] for row in self.rows], TYPES[name]) for name in columns]
        for name, kinds in self.kinds.items():
            arrays.append(kept.column([row[name] for row in self.rows]))
            kinds.add(arrays[-1].type)
        table = pyarrow.Table.from_arrays(arrays, names=[*columns, *self.layout.keep])
        part = self.folder / f"part-{len(self.parts):06}"  # not .parquet: globs must not find it
        self.parts.append(part)
        with writing(part):
            parquet.write_table(table, part, compression="zstd")
        self.rows.clear()
        self.held_bytes = 0

    def finish(self) -> None:
        """Write what is left, join the parts, and give the file its name."""
        if not self.claimed:
            self.claim()
        if self.rows:
            self.write_part()
        schema = self.schema()
        with writing(self.output):
            self.join(schema)
            sync(self.whole)
            self.publish()

    def join(self, schema: pyarrow.Schema) -> None:
        """The parts as one file, a row group each; only now are the kept columns' types known."""
        with parquet.ParquetWriter(self.whole, schema, compression="zstd") as writer:
            for table in self.tables():
                columns = map(kept.fitted, table.columns, schema.types)
                writer.write_table(pyarrow.Table.from_arrays(list(columns), schema=schema))

    def publish(self) -> None:
        """The output, whole, in one step; a file that came there meanwhile is not written over."""
        if self.output.exists() and not self.overwrite:
            finished = self.whole.replace(self.folder / "finished")
            raise OutputExists(
                f"{self.output} was made by something else while this run went on",
                hint=f"all rows of this run are in {finished}: move it where you want it",
            )
        self.whole.replace(self.output)
        sync(self.output.parent)

    def schema(self) -> pyarrow.Schema:
        """The columns of the whole file; its metadata has the run's settings under `pgcli`."""
        fields = [(name, TYPES[name]) for name in self.layout.columns]
        for place, (name, kinds) in enumerate(self.kinds.items(), start=len(fields)):
            arrays = (table.column(place) for table in self.tables())
            fields.append((name, kept.settled(kinds, arrays)))
        settings = json.dumps(dict(self.settings), default=str)
        return pyarrow.schema(fields, metadata={"pgcli": settings})

    def tables(self) -> Iterator[pyarrow.Table]:
        for part in self.parts:
            with writing(part), parquet.ParquetFile(part) as file:
                yield file.read()

    def clear(self) -> None:
        """Leave nothing of this run in the state folder, nor the folder where that empties it."""
        if not self.claimed:
            return
        with writing(self.folder):
            for file in (*self.parts, self.whole):
                file.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


def weight(value: Any) -> int:
    """About how many bytes a value takes in memory."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, list) else 8
