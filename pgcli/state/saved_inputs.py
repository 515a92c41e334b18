"""The input that each row of an output was made from, as its run recorded it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

from pgcli.state.input_records import InputRecords
from pgcli.state.row_input import RowInput
from pgcli.state.run_record import RunRecord
from pgcli.state.shard import stored_chunk_rows
from pgcli.state.state_folder import input_file, uses_chunks


class SavedInputs:
    """Records by the index of their rows, in an output of chunks of so many rows.

    A row that is not saved may have a stale one.
    """

    def __init__(self, output: Path, chunk_rows: int):
        self._output, self._chunk_rows = output, chunk_rows
        self._open: tuple[int, InputRecords] | None = None

    @classmethod
    def of_run(cls, output: Path, record: RunRecord) -> Self:
        """The records of a run's output; JSON lines are one chunk."""
        is_one = not uses_chunks(output)
        return cls(output, sys.maxsize if is_one else stored_chunk_rows(record.settings))

    def read(self, row_index: int) -> RowInput | None:
        """The input of a saved row; None if it is not known."""
        number, index = divmod(row_index, self._chunk_rows)
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, InputRecords(input_file(self._output, number), is_read_only=True)
        return self._open[1].read(index)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
