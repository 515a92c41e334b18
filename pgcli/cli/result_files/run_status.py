"""The status of a run: its rows as they are on disk, its processes, and its shards."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.shard_status import ShardStatus, shard_name, shards_of
from pgcli.errors import OutputFailed, UsageError
from pgcli.remote.stored_objects import check_folder_url
from pgcli.sinks.saved_rows import SavedRows, count_saved
from pgcli.state.added_prompts import new_output
from pgcli.state.owners import Owner, owners
from pgcli.state.progress import RunProgress, all_progress
from pgcli.state.run_record import read_record, why_no_record
from pgcli.state.shard import stored_chunk_rows
from pgcli.state.state_folder import state_folder
from pgcli.state.stored_run import stored_state


@dataclass
class RunStatus:
    """The status of a run. `state` is running, complete or stopped.

    `runs` are the processes that write the output, `lost` those that were killed or that another
    host has not heard of for long. `exit_code` is that of the last run, of several shards the
    highest; None while it runs and after it was killed. `shards` are those of the last run.
    `adding` is the status of the run that adds prompts to the output.
    """

    output: str
    state: str = "stopped"
    rows: int = 0
    total: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    rows_per_second: float | None = None
    seconds_left: float | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    shards: list[ShardStatus] = field(default_factory=list)
    begun: str | None = None
    adding: RunStatus | None = None


def read_run_status(output: Path) -> RunStatus:
    """The status of the run that writes or wrote an output. Raises UsageError if there is none."""
    found = list(owners(state_folder(output)))
    status = status_of(
        str(output), output, found, lambda run_id, progress: count_saved(output, run_id, progress)
    )
    if read_record(new_output(output)) is not None:
        add_added_prompts(status, read_run_status(new_output(output)))
    return status


def read_stored_status(url: str) -> RunStatus:
    """The status of the run that writes or wrote an output in an object store.

    Raises UsageError if there is none, or the store does not answer.
    """
    from pgcli.sinks.stored_folder import stored_rows  # it imports pyarrow

    check_folder_url(url, "")
    try:
        with stored_state(url) as state:
            found = list(state.owners.others().values())
            return status_of(
                url, state.output, found, lambda run_id, progress: stored_rows(state.parts, run_id)
            )
    except OutputFailed as problem:
        hint = "check the address and the credentials of the environment"
        raise UsageError(str(problem), hint=hint) from problem


def status_of(
    name: str,
    output: Path,
    found: Sequence[Owner],
    count_rows: Callable[[str, dict[str, RunProgress]], dict[int, SavedRows]],
) -> RunStatus:
    """The status of a run, by its state, its processes, and what counts the rows of its chunks."""
    folder, record = state_folder(output), read_record(output)
    status = RunStatus(name)
    status.runs = [process_of(owner) for owner in found if owner.is_running]
    status.lost = [lost_process(owner) for owner in found if not owner.is_running]
    if record is None and found:
        status.state = "running" if status.runs else "stopped"  # no row is saved yet
        return status
    if record is None:
        raise UsageError(
            f"{name} has no record of a run"
            + (f": {why_no_record(output)}" if name == str(output) else ""),
            hint="name an output of a command that answers, as it was given to -o",
        )
    status.begun = record.begun or None
    progress = all_progress(folder)
    chunks = count_rows(record.run_id, progress)
    running = {owner.part for owner in found if owner.is_running and not is_this_process(owner)}
    lost = {owner.part for owner in found if not owner.is_running}
    status.shards = shards_of(progress, chunks, running, lost, stored_chunk_rows(record.settings))
    add_rows(status, progress, chunks)
    add_speed(status, [progress[part] for part in running & progress.keys()] or last_run(progress))
    status.exit_code = None if running else exit_code(progress, status.shards)
    stored = sum(chunk.rows for chunk in chunks.values() if chunk.is_stored)
    is_ended = status.total is None and not status.shards and status.exit_code in (0, 3)
    is_complete = is_ended or (status.total is not None and stored >= status.total)
    status.state = "running" if running else "complete" if is_complete else "stopped"
    return status


def add_added_prompts(status: RunStatus, adding: RunStatus) -> None:
    """Add the status of the run that adds prompts: it is the last one of the output."""
    status.adding = adding
    status.state = "running" if adding.state == "running" else "stopped"
    status.rows_per_second, status.seconds_left = adding.rows_per_second, adding.seconds_left
    status.exit_code = adding.exit_code


def add_rows(
    status: RunStatus, progress: dict[str, RunProgress], chunks: Mapping[int, SavedRows]
) -> None:
    """Add the rows of all chunks, and how many there are to be.

    A run with a smaller limit than the one before leaves more rows than it asks for.
    """
    status.rows = sum(chunk.rows for chunk in chunks.values())
    for chunk in chunks.values():
        for code, count in chunk.errors.items():
            status.errors[code] = status.errors.get(code, 0) + count
    last = next(reversed(progress.values()), RunProgress())
    totals = [shard.total for shard in status.shards]
    total = last.whole
    if total is None and not status.shards:
        total = last.total
    elif total is None and None not in totals:  # shards of a version that did not save the whole
        total = sum(filter(None, totals))
    status.total = None if total is None else max(total, status.rows)


def add_speed(status: RunStatus, parts: list[RunProgress]) -> None:
    """Add the rows per second of these parts, and the time that a running one needs."""
    rates = [part.added / part.seconds for part in parts if part.seconds and part.added]
    if not rates:
        return
    status.rows_per_second = round(sum(rates), 3)
    if status.runs and status.total is not None and status.rows_per_second:
        status.seconds_left = round((status.total - status.rows) / status.rows_per_second, 1)


def last_run(progress: dict[str, RunProgress]) -> list[RunProgress]:
    """The progress of the parts of the last run: all shards of its division, or the one run."""
    division = next(reversed(progress), "").rpartition("-")[2]
    return [value for part, value in progress.items() if part.rpartition("-")[2] == division]


def exit_code(progress: dict[str, RunProgress], shards: Sequence[ShardStatus]) -> int | None:
    """The exit code of the last run; of several shards the highest, None if one was killed."""
    if any(shard.state == "stopped" and shard.exit_code is None for shard in shards):
        return None
    codes = [part.exit_code for part in last_run(progress)]
    return None if None in codes else max((code or 0 for code in codes), default=None)


def is_this_process(owner: Owner) -> bool:
    """Whether the process is this one, which shows its own run when all its rows are saved."""
    return (owner.process.get("pid"), owner.process.get("host")) == (
        os.getpid(),
        socket.gethostname(),
    )


def process_of(owner: Owner) -> dict[str, Any]:
    """What is known of a process, with the name of its shard if it has one."""
    shard = shard_name(owner.part)
    return {**owner.process, "shard": shard} if shard else owner.process


def lost_process(owner: Owner) -> dict[str, Any]:
    """What is known of a process that did not release its lock."""
    return {**process_of(owner), "silent_seconds": round(owner.silent_seconds)}
