"""Writes whole chunks of a folder of Parquet files: each is complete or not there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pgcli.records import NO_STAMP, Answer
from pgcli.rows import RowSchema
from pgcli.sinks.chunk_store import Chunk
from pgcli.sinks.lines import json_line
from pgcli.sinks.parquet_folder import ParquetFolder
from pgcli.state.atomic_file import temporary_path
from pgcli.state.input_records import InputRecords
from pgcli.state.row_input import InputDigest, RowInput
from pgcli.state.state_folder import input_file

ChunkRow = tuple[Answer, RowInput]


class ChunkWriter:
    """Stores the rows of chunks in a folder. A chunk that another process stored first stays,
    unless it has fewer rows, as with a smaller limit.
    """

    def __init__(self, store: ParquetFolder, schema: RowSchema):
        self._store, self._schema = store, replace(schema, exact=True)

    def write(self, number: int, rows: Sequence[ChunkRow]) -> None:
        """Store a chunk durably, with the input of its rows. Raises OutputFailed, OutputExists."""
        digest, errors, inputs = InputDigest(), Counter[str](), []
        for answer, row_input in rows:
            if answer.error is not None:
                errors[answer.error] += 1
                row_input = replace(row_input, stamp=NO_STAMP)
            inputs.append(row_input)
            digest.update(row_input)
        chunk = Chunk(number, len(rows), digest.value, dict(errors))
        if self._store.has_longer(chunk):
            return  # its rows and their inputs stay
        if self._store.keeps_inputs:
            self._write_inputs(number, inputs)
        # as rows read back from a file of lines, so that all runs store the same values
        lines = (json.loads(json_line(answer, self._schema)) for answer, _ in rows)
        self._store.write_chunk(chunk, list(lines))

    def _write_inputs(self, number: int, inputs: Sequence[RowInput]) -> None:
        """Record the input of each row durably."""
        final = input_file(self._store.output, number)
        records = InputRecords(temporary_path(final), is_new=True)
        records.write(0, *inputs)
        records.rename(final)
        records.sync()
        records.close()
