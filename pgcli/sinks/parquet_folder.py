"""A folder of Parquet files: at every instant those are in it that are complete, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow

from pgcli.errors import OutputExists, OutputFailed
from pgcli.rows import RowSchema
from pgcli.sinks import column_types
from pgcli.sinks.chunk_store import Chunk, chunks_in, metadata, published, rows_in, write
from pgcli.sinks.schema import Row, table
from pgcli.state.run_state import State
from pgcli.state.write_errors import make_folder, writing

NAME = re.compile(r"part-(\d{6,})\.parquet")


class Folder:
    """A shelf whose chunks are the output's files, named by their numbers.

    A chunk that two processes compute is there once, as the first of them wrote it. The kept
    columns have the same types in each file.
    """

    def __init__(
        self,
        state: State,
        layout: RowSchema,
        settings: Mapping[str, object],
        kinds: Mapping[str, pyarrow.DataType],
    ):
        self._state, self._layout, self._settings, self._kinds = state, layout, settings, kinds
        self._output = state.output
        self._chunks: dict[int, Chunk] = {}
        for number, part in parts_in(self._output) if state.is_old else ():
            if not (found := chunks_in(part, state.run)):
                raise OutputExists(
                    f"{part} is not of the run that {self._output} belongs to",
                    hint="move it away; or choose another -o",
                )
            self._chunks[number] = found[0]

    def chunks(self) -> dict[int, Chunk]:
        return dict(self._chunks)

    def rows(self, number: int) -> Iterator[Row]:
        return rows_in(self._part(number))

    def put(self, chunk: Chunk, rows: list[Row]) -> None:
        # not in the folder, and not called .parquet: readers take whatever they find there
        beside = self._state.folder / f"{chunk.number:06}{self._state.part}.tmp"
        told = metadata(self._settings, self._state.run, [chunk])
        try:
            made = table(rows, self._layout, self._kinds)
        except column_types.MISFITS as problem:
            raise OutputExists(
                f"a kept column of {self._output} has values of another type now: {problem}",
                hint="another -o begins anew; --overwrite replaces it",
            ) from problem
        with writing(self._output):
            make_folder(self._output)
            write(beside, made, rows, told)
        self._publish(beside, chunk)

    def _publish(self, beside: Path, chunk: Chunk) -> None:
        part = self._part(chunk.number)
        replace = chunk.number in self._chunks
        if not published(beside, part, replace=replace):
            there = chunks_in(part, self._state.run)
            if not there or there[0].digest != chunk.digest:
                raise OutputFailed(
                    f"{part} was made by something else while this run went on",
                    hint="move it away; the same command goes on from there",
                )
            chunk = there[0]
        self._chunks[chunk.number] = chunk

    def finish(self) -> None:
        with writing(self._output):
            make_folder(self._output)

    def clear(self) -> None:
        pass

    def _part(self, number: int) -> Path:
        return self._output / f"part-{number:06}.parquet"


def parts_in(folder: Path) -> Iterator[tuple[int, Path]]:
    """The parts in the folder, by their numbers."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if found := NAME.fullmatch(file.name):
            yield int(found[1]), file
