"""The status of a run: its rows as they are on disk, and its processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pgcli.errors import OutputFailed, UsageError
from pgcli.pipeline.reopen import open_store, record_of
from pgcli.pipeline.request.shard import Shard
from pgcli.pipeline.rows import chunk, chunk_numbers
from pgcli.pipeline.state.form import FormContext
from pgcli.pipeline.state.forms import open_form, saved_segments
from pgcli.pipeline.state.open_files import Coverage, OpenFiles
from pgcli.pipeline.state.processes import RecordedProcess, began_at, recorded_processes
from pgcli.pipeline.state.record import RUN, RunRecord
from pgcli.stores import RemoteError
from pgcli.stores.errors import is_temporary

MAX_SHARDS = 10_000  # that are listed


@dataclass(frozen=True)
class ShardStatus:
    """A shard, as it was given to `--shard`: running, complete, stopped, or waiting to begin."""

    shard: str
    state: str
    rows: int
    total: int | None
    exit_code: int | None


@dataclass
class RunStatus:
    """The status of a run. `state` is running, complete or stopped.

    `runs` are the processes that write the output, `lost` those that were killed, or silent for
    long on another machine, until another one begins in their place. `engines` run the model for
    them, `dead_engines` did. `exit_code` is that of the last command, of several
    shards the highest; None while it runs and after it was killed. `surplus` rows belong to images
    that are not in the input any more.
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
    engines: int = 0
    dead_engines: int = 0
    exit_code: int | None = None
    shards: list[ShardStatus] = field(default_factory=list)
    begun: str | None = None
    surplus: int = 0


def read_status(output: str) -> RunStatus:
    """The status of the run that writes or wrote an output. Raises UsageError if there is none."""
    try:
        store = open_store(output)
        processes = recorded_processes(store)
        if processes and store.read(RUN) is None:
            return with_processes(RunStatus(output), processes)
        record = record_of(output, store)
        files = OpenFiles(store, "")
        try:
            form = open_form(output, FormContext(lambda: record, files))
            segments = saved_segments(form, files)
        except FileNotFoundError:  # a folder that was removed
            segments = files.segments()
    except OutputFailed as problem:
        if isinstance(problem.__cause__, RemoteError) and is_temporary(problem.__cause__):
            raise
        hint = "check the address and the credentials of the environment"
        raise UsageError(str(problem), hint=hint) from problem
    status = RunStatus(output, begun=record.begun or None)
    coverage = Coverage(segments)
    status.rows = coverage.count()
    errors: Counter[str] = Counter()
    for segment in segments:
        errors.update(segment.errors)
    status.errors = dict(errors)
    totals = [o.values["total"] for o in processes if isinstance(o.values.get("total"), int)]
    status.total = max(totals[-1], status.rows) if totals else None
    surpluses = [process.values.get("surplus") for process in processes]
    status.surplus = next((n for n in reversed(surpluses) if isinstance(n, int)), 0)
    with_processes(status, processes)
    final = Coverage(segment for segment in segments if not segment.name)
    is_ended = status.total is None and status.exit_code in (0, 3)
    is_complete = is_ended or (status.total is not None and final.count() >= status.total)
    if status.state != "running":
        status.state = "complete" if is_complete else "stopped"
    if status.state == "complete":
        status.lost = []
    add_shards(status, processes, coverage, final, record)
    return status


def with_processes(status: RunStatus, processes: Sequence[RecordedProcess]) -> RunStatus:
    """The status with the processes that write the output, and their speed."""
    commands = [process for process in processes if process.values.get("mode") != "engine"]
    status.runs = [shown(process.values) for process in commands if process.is_alive]
    status.lost = [
        {**shown(process.values), "silent_seconds": round(process.silent_seconds)}
        for process in commands
        if is_dead(process) and not is_replaced(process, commands)
    ]
    engines = [process for process in processes if process.values.get("mode") == "engine"]
    status.engines = sum(process.is_alive for process in engines)
    status.dead_engines = sum(map(is_dead, engines))
    status.state = "running" if status.runs else "stopped"
    if not status.runs:
        codes = [process.values.get("exit_code") for process in commands]
        known = [code for code in codes if isinstance(code, int)]
        status.exit_code = max(known) if known and len(known) == len(codes) else None
    computed = [process for process in commands if rate_of(process.values)]
    measured = [process for process in computed if process.is_alive] or computed[-1:]
    if measured:
        rate = sum(rate_of(process.values) for process in measured)
        status.rows_per_second = round(rate, 3)
        if status.runs and status.total is not None:
            status.seconds_left = round((status.total - status.rows) / rate, 1)
    return status


def is_dead(process: RecordedProcess) -> bool:
    """Whether a process was killed, or has been silent for long on another machine."""
    return not process.is_alive and process.values.get("exit_code") is None


def is_replaced(process: RecordedProcess, commands: Sequence[RecordedProcess]) -> bool:
    """Whether a command with the same rows began after the last sign of life of a process."""
    last_sign, shard = time.time() - process.silent_seconds, process.values.get("shard")
    return any(c.values.get("shard") == shard and began_at(c) > last_sign for c in commands)


def rate_of(values: Mapping[str, Any]) -> float:
    """The rows per second of a process."""
    rows, seconds = values.get("rows"), values.get("seconds")
    if not isinstance(rows, int) or not isinstance(seconds, float | int) or not seconds:
        return 0.0
    with suppress(OverflowError):  # a file of another program
        return rows / seconds
    return 0.0


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a process."""
    names = ("pid", "host", "since", "shard")
    return {name: values[name] for name in names if values.get(name) is not None}


def add_shards(
    status: RunStatus,
    processes: Sequence[RecordedProcess],
    coverage: Coverage,
    final: Coverage,
    record: RunRecord,
) -> None:
    """Add the shards of the last command that was one."""
    named = [process for process in processes if isinstance(process.values.get("shard"), str)]
    if not named or status.total is None:
        return
    digits = str(named[-1].values["shard"]).partition("/")[2]
    count = int(digits) if digits.isdecimal() and len(digits) < 10 else 0
    if not 0 < count <= MAX_SHARDS:
        return
    latest = {str(process.values["shard"]): process for process in named}
    numbers = chunk_numbers(record.chunk_rows, status.total)
    for number in range(count):
        name, shard = f"{number}/{count}", Shard(number, count)
        chunks = [chunk(n, record.chunk_rows, status.total) for n in numbers if shard.has(n)]
        total = sum(map(len, chunks))
        rows = sum(coverage.count(c.stop) - coverage.count(c.start) for c in chunks)
        stored = sum(final.count(c.stop) - final.count(c.start) for c in chunks)
        process = latest.get(name)
        code = None if process is None else process.values.get("exit_code")
        state = "waiting" if process is None else "stopped"
        if process is not None and process.is_alive:
            state = "running"
        elif stored >= total:
            state = "complete"
        status.shards.append(ShardStatus(name, state, rows, total, code))
