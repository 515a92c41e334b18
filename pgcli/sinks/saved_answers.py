"""Reads the answers of rows that an earlier run saved, while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pgcli.sinks.reader import chunk_rows
from pgcli.state.record_file import read_rows
from pgcli.state.state_folder import uses_chunks

Row = Mapping[str, Any]


class SavedAnswers:
    """The saved rows of an output. Of its chunks only those are opened whose rows are asked for."""

    def __init__(self, output: Path):
        self._output = output
        self._chunks: list[tuple[int, Iterator[Row]]] | None = None
        self._rows: Iterator[Row] = iter(())
        self._next = 0

    def find(self, row_index: int) -> Row | None:
        """The row; None if it is not saved. To be called with increasing indices.

        Raises OSError and what pyarrow raises.
        """
        if self._chunks is None:
            self._chunks = self._open_chunks()
        while self._chunks and self._chunks[0][0] <= row_index:
            self._next, self._rows = self._chunks.pop(0)
        row = next(islice(self._rows, row_index - self._next, None), None)
        self._next = row_index + 1
        return row

    def _open_chunks(self) -> list[tuple[int, Iterator[Row]]]:
        """Each chunk's first row index and its rows, which are opened when the first is read."""
        if not uses_chunks(self._output):
            return [(0, read_rows(self._output))]
        return [(start, rows) for rows, start in chunk_rows(self._output, exact=False)]
