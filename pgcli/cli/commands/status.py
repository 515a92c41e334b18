"""status: how a run stands, while it goes on and after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Facts
from pgcli.cli.ui.duration import duration
from pgcli.errors import UsageError
from pgcli.sinks.reader import behind
from pgcli.state.atomic_file import got
from pgcli.state.lock import OWNER, is_alive
from pgcli.state.progress import Progress, progress_of
from pgcli.state.run_state import PROGRESS, record_in, why_unknown
from pgcli.state.state_folder import chunk_lines, is_in_chunks, state_folder


@dataclass
class RunStatus:
    """How a run stands. `state` is running, complete or stopped; of shards the numbers are sums."""

    output: str
    state: str = "stopped"
    rows: int = 0
    total: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    rows_per_second: float | None = None
    seconds_left: float | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    begun: str | None = None


def show(output: str, *, as_json: bool) -> None:
    """Print how the run of an output stands. Raises UsageError where none is known."""
    told = read_run_status(Path(output))
    if as_json:
        stdout.print_json(asdict(told))
    else:
        stdout.print_facts(facts(told))


def read_run_status(output: Path) -> RunStatus:
    """How the run of an output stands, by what it wrote down beside it. Takes no lock."""
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
    told = RunStatus(str(output), begun=record.get("begun"))
    files = sorted(folder.glob(f"{PROGRESS}*.json"))
    for file in files or [folder / f"{PROGRESS}.json"]:
        part = file.stem.removeprefix(PROGRESS)
        add(told, progress_of(got(file) or {}), output, part)
    told.runs = runs
    is_complete = told.total is not None and told.rows >= told.total
    told.state = "running" if told.runs else "complete" if is_complete else "stopped"
    if told.total is not None and told.rows_per_second and told.runs:
        told.seconds_left = round((told.total - told.rows) / told.rows_per_second, 1)
    return told


def add(told: RunStatus, progress: Progress, output: Path, part: str) -> None:
    """Add what one process wrote down, and what it saved since in the file it was at then."""
    is_chunk = is_in_chunks(output)
    file = chunk_lines(output, progress.chunk, part) if is_chunk else output
    rows, errors = behind(file, progress.safe)
    if is_chunk:  # those of other chunks
        rows += progress.rows - progress.safe.rows
        errors = Counter(progress.errors) - Counter(progress.safe.errors) + errors
    told.rows += rows
    for code, count in errors.items():
        told.errors[code] = told.errors.get(code, 0) + count
    if progress.total is not None:
        told.total = (told.total or 0) + progress.total
    if progress.seconds:
        rate = progress.added / progress.seconds
        told.rows_per_second = round((told.rows_per_second or 0.0) + rate, 3)


def facts(told: RunStatus) -> Facts:
    """The same for a person to read."""
    of = f" of {told.total:,}" if told.total is not None else ""
    share = f" ({told.rows / told.total:.1%})" if told.total else ""
    errors = ", ".join(f"{code} {count:,}" for code, count in sorted(told.errors.items()))
    found = [("output", told.output), ("state", told.state), ("rows", f"{told.rows:,}{of}{share}")]
    found.append(("errors", errors or "none"))
    if told.rows_per_second is not None:
        found.append(("speed", f"{told.rows_per_second:,.1f} rows/s"))
    if told.seconds_left is not None:
        left = timedelta(seconds=round(told.seconds_left))
        found.append(("left", duration(left.total_seconds())))
    for run in told.runs:
        found.append(("run by", f"process {run.get('pid')} on {run.get('host')}"))
    if told.state == "stopped":
        found.append(("go on", "the same command goes on from there"))
    return found
