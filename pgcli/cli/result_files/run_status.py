"""The status of a run, read from its state folder without a lock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.sinks.reader import behind
from pgcli.state.atomic_file import got
from pgcli.state.lock import OWNER, is_alive
from pgcli.state.progress import Progress, progress_of
from pgcli.state.run_state import PROGRESS, record_in, why_unknown
from pgcli.state.state_folder import chunk_lines, is_in_chunks, state_folder


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

    def add(self, progress: Progress, output: Path, part: str) -> None:
        """Add the progress that one process saved, and the rows that it wrote since then."""
        is_chunk = is_in_chunks(output)
        file = chunk_lines(output, progress.chunk, part) if is_chunk else output
        rows, errors = behind(file, progress.safe)
        if is_chunk:  # those of other chunks
            rows += progress.rows - progress.safe.rows
            errors = Counter(progress.errors) - Counter(progress.safe.errors) + errors
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
    record = record_in(folder)
    owners = [got(file) or {} for file in sorted(folder.glob(f"{OWNER}*.json"))]
    runs = [owner for owner in owners if is_alive(owner)]
    if record is None and runs:
        return RunStatus(str(output), state="running", runs=runs)  # no row is saved yet
    if record is None:
        raise UsageError(
            f"no run is known of {output}: {why_unknown(folder)}",
            hint="name an output as it was given to -o",
        )
    status = RunStatus(str(output), begun=record.get("begun"), runs=runs)
    files = sorted(folder.glob(f"{PROGRESS}*.json"))
    for file in files or [folder / f"{PROGRESS}.json"]:
        part = file.stem.removeprefix(PROGRESS)
        status.add(progress_of(got(file) or {}), output, part)
    is_complete = status.total is not None and status.rows >= status.total
    status.state = "running" if runs else "complete" if is_complete else "stopped"
    if status.total is not None and status.rows_per_second and runs:
        status.seconds_left = round((status.total - status.rows) / status.rows_per_second, 1)
    return status
