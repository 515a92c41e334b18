"""`--retry-errors` and `--retry-changed`: answer rows again, and merge them into the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pgcli.inputs.stamps import Stamp
from pgcli.run.output import RunOutput, SaveLine
from pgcli.run.state.compare import ImageStamps, stamp_at
from pgcli.run.state.folder import RETRIED
from pgcli.run.state.lines import Log, errors_in, is_row, merge_ranges, open_stream
from pgcli.text import count

STAMPS = f"{RETRIED}/images"
#: Each line is the number of a row, a space, and the row.
ANSWERS = f"{RETRIED}/{0:012}.jsonl"


class Retry:
    """A retry of failed rows and of rows of changed images in a complete output.

    The state folder keeps the new answers, also over interruptions, until all rows are answered.
    The stamps of their images are noted after the merge: if the command is killed before, the
    images still count as changed.
    """

    def __init__(self, output: RunOutput, *, wants_errors: bool):
        self._output, self._wants_errors = output, wants_errors
        self._store = output.state.store
        self._log, self._stamps = Log(self._store, ANSWERS), ImageStamps(self._store, STAMPS)
        errors: list[int] = []
        if wants_errors:
            errors = [number for number, _ in output.saved.error_rows()]
        changed = output.rows_of_changed()
        self._numbers = sorted({*errors, *changed})
        saved = self._saved_answers()
        self._log.remove()
        self._kept = {number: saved[number] for number in self._numbers if number in saved}
        for number, line in self._kept.items():
            self._append(number, line)
        #: The rows to retry.
        self.missing = [number for number in self._numbers if number not in self._kept]
        self.ranges = merge_ranges(range(number, number + 1) for number in self.missing)
        kinds = [count(len(errors), "failed row")] * bool(errors)
        kinds += [f"{count(len(changed), 'row')} of changed images"] * bool(changed)
        self.notice = (
            f"retrying {' and '.join(kinds)}; {output.state.name} is replaced once all are answered"
        )

    def errors_before(self, saved: Counter[str]) -> Counter[str]:
        """The errors of rows that are not retried."""
        errors = errors_in(self._kept.values())
        return errors if self._wants_errors else saved + errors

    @contextmanager
    def saving(self) -> Iterator[SaveLine]:
        """Yield what keeps an answer until all rows are answered."""
        try:
            yield self._append
        finally:
            self._stamps.close()
            self._log.close()

    def note_stamp(self, index: int, stamp: Stamp | None) -> None:
        """Note the stamp of an image before its answers are kept."""
        self._stamps.note(index, stamp or (0, 0, 0))

    def merge(self) -> None:
        """Put the answers, which are complete now, into the output."""
        lines = self._saved_answers()
        self._output.saved.replace_rows(lines)
        stamps = self._stamps.read()
        for index in {json.loads(line)["index"] for line in lines.values()}:
            stamp = stamp_at(stamps, index)
            self._output.stamps.note(index, stamp if stamp[0] else None)
        self._store.delete([STAMPS])
        self._log.remove()

    def _append(self, number: int, line: bytes) -> None:
        self._log.append(b"%d %b" % (number, line))

    def _saved_answers(self) -> dict[int, bytes]:
        """The complete lines of the log, by number."""
        lines: dict[int, bytes] = {}
        stream = open_stream(self._store, ANSWERS)
        for line in stream or ():
            number, _, row = line.partition(b" ")
            if not (number.isdigit() and is_row(row)):
                break
            lines[int(number)] = row
        if stream is not None:
            stream.close()
        return lines
