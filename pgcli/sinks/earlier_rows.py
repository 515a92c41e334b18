"""The rows of an output to which prompts are added, by their indices in the new output."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.sinks.reader import indexed_rows
from pgcli.state.input_check import PreviousRows, Row
from pgcli.state.row_input import RowInput
from pgcli.state.run_record import PROMPTS, Settings
from pgcli.state.run_state import RunState
from pgcli.state.saved_inputs import SavedInputs
from pgcli.state.write_errors import wrap_write_errors


class RowIndices:
    """Converts the indices of rows between an output and one with more prompts for each image."""

    def __init__(self, old: Settings, new: Settings):
        prompts: list[Any] = list(new[PROMPTS])
        self._old = [prompts.index(prompt) for prompt in old[PROMPTS]]
        self._count = len(prompts)

    def new(self, old_index: int) -> int:
        """The index in the new output of a row of the old one."""
        image, number = divmod(old_index, len(self._old))
        return image * self._count + self._old[number]

    def old(self, new_index: int) -> int | None:
        """The index in the old output of a row of the new one; None for an added prompt."""
        image, number = divmod(new_index, self._count)
        return image * len(self._old) + self._old.index(number) if number in self._old else None


class EarlierInputs:
    """The input of the rows of the old output, by their indices in the new one."""

    def __init__(self, inputs: SavedInputs, indices: RowIndices):
        self._inputs, self._indices = inputs, indices
        self._lock = threading.Lock()  # rows are compared in another thread than they are saved

    def read(self, row_index: int) -> RowInput | None:
        old_index = self._indices.old(row_index)
        with self._lock:
            return None if old_index is None else self._inputs.read(old_index)

    def close(self) -> None:
        self._inputs.close()


def open_earlier_rows(state: RunState, *, retry: bool) -> PreviousRows | None:
    """The rows of the output to which the run adds prompts; None for any other run.

    They are copied, without those that have errors with `retry`.
    """
    if state.extends is None or state.record is None:
        return None
    output, record = state.extends
    indices = RowIndices(record.settings, state.record.settings)
    return PreviousRows(
        partial(read_earlier, output, indices),
        EarlierInputs(SavedInputs.of_run(output, record), indices),
        state.comparer,
        keeps_errors=not retry,
    )


def read_earlier(output: Path, indices: RowIndices) -> Iterator[tuple[int, Row]]:
    """The rows of the old output with their indices in the new one.

    Raises OutputFailed, and OutputExists for an output that is damaged.
    """
    try:
        with wrap_write_errors(output):
            for old_index, row in indexed_rows(output, exact=True):
                if row is None:  # the last line is cut
                    return
                yield indices.new(old_index), row
    except (ValueError, RecursionError) as problem:  # includes those of pyarrow
        raise OutputExists(
            f"{output} cannot be read: {problem}", hint="another -o starts anew"
        ) from problem
