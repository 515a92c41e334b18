"""The status of a run, read from its state folder without a lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.sinks.reader import count_saved
from pgcli.state.atomic_file import read_json
from pgcli.state.lock import is_alive
from pgcli.state.progress import RunProgress, progress_parts, read_progress
from pgcli.state.run_record import read_record, why_no_record
from pgcli.state.state_folder import OWNER, state_folder


@dataclass
class RunStatus:
    """The status of a run, summed over its shards. `state` is running, complete or stopped."""

    output: str
    state: str = "stopped"
    rows: int = 0
    total: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    rows_per_second: float | None = None
    seconds_left: float | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    begun: str | None = None

    def add(self, progress: RunProgress, output: Path, part: str) -> None:
        """Add the progress that one process saved, and the rows that it wrote since then."""
        rows, errors = count_saved(output, progress, part)
        self.rows += rows
        for code, count in errors.items():
            self.errors[code] = self.errors.get(code, 0) + count
        if progress.total is not None:
            self.total = (self.total or 0) + progress.total
        if progress.seconds:
            rate = progress.added / progress.seconds
            self.rows_per_second = round((self.rows_per_second or 0.0) + rate, 3)


def read_run_status(output: Path) -> RunStatus:
    """The status of the run that writes or wrote an output. Raises UsageError if there is none."""
    folder = state_folder(output)
    record = read_record(output)
    owners = [read_json(file) or {} for file in sorted(folder.glob(f"{OWNER}*.json"))]
    runs = [owner for owner in owners if is_alive(owner)]
    if record is None and runs:
        return RunStatus(str(output), state="running", runs=runs)  # no row is saved yet
    if record is None:
        raise UsageError(
            f"{output} has no record of a run: {why_no_record(output)}",
            hint="name an output as it was given to -o",
        )
    status = RunStatus(str(output), begun=record.begun or None, runs=runs)
    for part in progress_parts(folder):
        status.add(read_progress(folder, part), output, part)
    is_complete = status.total is not None and status.rows >= status.total
    status.state = "running" if runs else "complete" if is_complete else "stopped"
    if status.total is not None and status.rows_per_second and runs:
        status.seconds_left = round((status.total - status.rows) / status.rows_per_second, 1)
    return status
