"""The input that each row of an output was made from, as its run recorded it."""

from __future__ import annotations

from pathlib import Path

from pgcli.state.input_records import InputRecords
from pgcli.state.row_input import RowInput
from pgcli.state.run_record import RunRecord
from pgcli.state.shard import stored_chunk_rows
from pgcli.state.state_folder import input_file, uses_chunks


class SavedInputs:
    """Records by the position of their rows, which must not decrease."""

    def __init__(self, output: Path, record: RunRecord):
        self._output = output
        self._chunk_rows = stored_chunk_rows(record.settings) if uses_chunks(output) else None
        self._open: tuple[int, InputRecords] | None = None

    def read(self, position: int) -> RowInput | None:
        """The input of the row; None if it is not known."""
        number, index = divmod(position, self._chunk_rows) if self._chunk_rows else (0, position)
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, InputRecords(input_file(self._output, number), is_read_only=True)
        return self._open[1].read(index)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
