"""The status of a run, and its request and input, from its record and its rows on disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pgcli.declare import Option, parse_keywords
from pgcli.errors import INCOMPLETE, OutputFailed, UsageError
from pgcli.run.checks import read_options
from pgcli.run.input_rows import RunRows
from pgcli.run.request import RunRequest, build_request, records_of
from pgcli.run.state.folder import State, load_inventory, shard_stores
from pgcli.run.state.lines import ALL_ROWS, OutputPart
from pgcli.run.state.owner import OWNER, SILENT_SECONDS, RecordedOwner, owners
from pgcli.run.state.record import (
    RUN,
    RunRecord,
    read_record,
    state_lacks,
    state_location,
    why_no_record,
)
from pgcli.run.state.saved import open_saved
from pgcli.stores import Reader, Store, open_folder
from pgcli.stores.urls import TransientError

MAX_SHARDS = 10_000  # to list
#: The state of an incomplete shard for each state of its owner.
SHARD_STATES = {"running": "running", "ended": "stopped", "suspended": "lost", "lost": "lost"}
#: The keys of `owner.json` in the status; numbers are not negative.
SHOWN: dict[str, type] = {"pid": int, "host": str, "started": str, "hint": str, "exit_code": int}
SHOWN |= {"rows_per_second": float, "input_rows": int}


@dataclass(frozen=True)
class OwnerStatus:
    """The command that writes an output or a shard, or wrote it last.

    `state` is running, ended, suspended (it holds its lock but writes no heartbeat) or lost (it was
    killed, or its machine is gone). `silent_seconds` is the time since the last heartbeat of a
    suspended or lost owner. The other values come from `owner.json`.
    """

    shard: str
    state: str
    silent_seconds: float | None
    pid: int | None = None
    host: str | None = None
    started: str | None = None
    hint: str | None = None
    exit_code: int | None = None
    rows_per_second: float = 0.0
    input_rows: int | None = None

    @classmethod
    def of(cls, owner: RecordedOwner) -> OwnerStatus:
        """The status of an owner, from a file with untrusted values."""
        shown: dict[str, Any] = {}
        for name, kind in SHOWN.items():
            value = owner.values.get(name)
            if isinstance(value, kind) and (kind is str or 0 <= owner.values[name] < ALL_ROWS):
                shown[name] = value
        state = "running" if owner.silent_seconds < SILENT_SECONDS else "suspended"
        if not owner.is_running:
            state = "ended" if "exit_code" in shown else "lost"
        silent = round(owner.silent_seconds, 1) if state in ("suspended", "lost") else None
        return cls(owner.shard, state, silent, **shown)


@dataclass(frozen=True)
class ShardStatus:
    """A shard, as `--shard` names it: running, complete, stopped, lost or waiting.

    The owner of a lost shard is lost or suspended; a waiting shard has no owner yet. `total` is
    None before the input has been read.
    """

    shard: str
    state: str
    rows: int
    total: int | None
    owner: OwnerStatus | None


@dataclass
class RunStatus:
    """The status of a run. `state` is running, complete or stopped.

    `owner` is the command that writes the output or wrote it last; each of the `shards` has its
    own. `exit_code` is the owner's, or the highest of all shards; None while a command runs and
    after a kill. The limit of tokens `cut` answers.
    """

    output: str
    state: str = "stopped"
    rows: int = 0
    total: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    cut: int = 0
    rows_per_second: float | None = None
    seconds_left: float | None = None
    exit_code: int | None = None
    owner: OwnerStatus | None = None
    shards: list[ShardStatus] = field(default_factory=list)
    begun: str | None = None


def read_status(output: str) -> RunStatus:
    """The status of an output's run.

    Raises UsageError for an output without a run, and OutputExists for one that the same command
    refuses because of its files.
    """
    parts: Mapping[int, OutputPart] = {}
    begun, file_rows = None, 0
    try:
        store = open_store(output)
        known = sorted(map(OwnerStatus.of, owners(store)), key=lambda owner: owner.started or "")
        if not known or store.read(RUN) is not None:
            record = record_of(output, store)
            begun, file_rows = record.begun or None, record.file_rows
            parts = read_parts(output, store, record)
            if not known:
                raise state_lacks(store, OWNER, hint="the same command writes it again")
        elif not any(owner.state == "running" for owner in known):
            State(output, overwrite=False).check()  # a run killed at its start has no record
    except OutputFailed as problem:
        if isinstance(problem.__cause__, TransientError):
            raise
        hint = "check the URL, and the credentials in the environment"
        raise UsageError(str(problem), hint=hint) from problem
    status = RunStatus(output, rows=sum(part.rows for part in parts.values()), begun=begun)
    status.cut = sum(part.cut for part in parts.values())
    status.errors = dict(sum((part.errors for part in parts.values()), Counter[str]()))
    add_owners(status, known)
    is_complete = status.exit_code in (0, INCOMPLETE)
    if status.total is not None:
        is_complete = sum(part.rows - part.in_log for part in parts.values()) >= status.total
    if is_complete and status.state != "running":
        status.state = "complete"
    if known and known[-1].shard:
        add_shards(status, known, parts, file_rows)
    return status


def read_parts(output: str, store: Store, record: RunRecord) -> Mapping[int, OutputPart]:
    """The saved rows, with those in the logs of each owner; none if the output was removed."""
    try:
        saved = open_saved(output, lambda: record, [store, *shard_stores(store)])
    except FileNotFoundError:
        return {}
    saved.find()
    return saved.parts


def add_owners(status: RunStatus, known: Sequence[OwnerStatus]) -> None:
    """Add the total, the rate and the exit code from the owners."""
    if not known:
        return
    totals = [owner.input_rows for owner in known if owner.input_rows is not None]
    status.total = max(totals[-1], status.rows) if totals else None
    status.owner = None if known[-1].shard else known[-1]
    running = [owner for owner in known if owner.state == "running"]
    measured = running or [owner for owner in known if owner.rows_per_second][-1:]
    if rate := sum(owner.rows_per_second for owner in measured):
        status.rows_per_second = round(rate, 3)
        if running and status.total is not None:
            status.seconds_left = round((status.total - status.rows) / rate, 1)
    if running:
        status.state = "running"
        return
    codes = [owner.exit_code for owner in known if shard_count(owner) == shard_count(known[-1])]
    ended = [code for code in codes if code is not None]
    status.exit_code = max(ended) if len(ended) == len(codes) else None


def add_shards(
    status: RunStatus, known: Sequence[OwnerStatus], parts: Mapping[int, OutputPart], size: int
) -> None:
    """Add all shards of the last command's shard count; files have `size` rows.

    The file of a number belongs to the shard of the remainder.
    """
    count, latest = shard_count(known[-1]), {owner.shard: owner for owner in known}
    if count > MAX_SHARDS:
        return
    rows, stored = Counter[int](), Counter[int]()
    for number, part in parts.items():
        rows[number % count] += part.rows
        stored[number % count] += part.rows - part.in_log
    total = status.total if size else None
    for number in range(count):
        of_shard = None
        if total is not None:
            rounds, remainder = divmod(total, count * size)
            of_shard = rounds * size + min(max(remainder - number * size, 0), size)
        owner = latest.get(shard := f"{number}/{count}")
        state = "waiting" if owner is None else SHARD_STATES[owner.state]
        if state != "running" and of_shard is not None and stored[number] >= of_shard:
            state = "complete"
        status.shards.append(ShardStatus(shard, state, rows[number], of_shard, owner))


def shard_count(owner: OwnerStatus) -> int:
    """The shard count of an owner; 0 for the owner of the whole output."""
    return int(owner.shard.partition("/")[2][:18] or 0)


#: The sources of a record, checked like the sources of a command.
SOURCES = Option(help="", panel="", repeat=True)


def open_store(output: str) -> Store:
    """The state folder of an output. Raises UsageError if there is none."""
    if not output:
        raise UsageError("the name of the output is empty", hint="name a file or folder of a run")
    try:
        return open_folder(state_location(output))
    except FileNotFoundError:
        raise no_record(output, f"there is no {state_location(output)}") from None


def record_of(output: str, store: Store) -> RunRecord:
    """The record of an output's run.

    Raises the error of the run itself if it would refuse the output, and UsageError if there is
    nothing to resume.
    """
    record = read_record(store)
    if record is None:
        State(output, overwrite=False).check()
        raise no_record(output, why_no_record(store))
    return record


def no_record(output: str, why: str) -> UsageError:
    """The error for an output without a record of its run."""
    return UsageError(
        f"{output} has no record of a run: {why}",
        hint="name the output (<-o>) of an answering command",
    )


def reopened_request(output: str, record: RunRecord) -> RunRequest:
    """The request of a run, with the options that rows depend on. Raises UsageError."""
    values = record.input
    try:
        options = parse_keywords(records_of(values["command"]), dict(values["options"]))
        folder = os.path.realpath(values["folder"])
        return build_request(
            values["command"],
            SOURCES.read(values["sources"]),
            options,
            folder=folder,
            instructed=values.get("instructed") is True,
        )
    except (KeyError, TypeError, ValueError, UsageError) as problem:
        raise UsageError(
            f"{state_location(output)}/{RUN} is not the record of a run: {problem}",
            hint="<--overwrite> writes the output and its record again",
        ) from problem


def recorded_rows(store: Store, request: RunRequest, reader: Reader | None) -> RunRows | None:
    """The rows of a run with its recorded input; None if that is not recorded (standard input).

    The `reader` reads URLs; without it, a source at a URL raises UsageError.
    """
    if "-" in request.sources:
        return None
    options = replace(read_options(request), url_reader=reader)
    if (inventory := load_inventory(store, request.sources, options)) is None:
        return None
    return RunRows(inventory, request.question, request.input.limit)


def reopened_rows(output: str, reader: Reader | None) -> RunRows | None:
    """The rows of an output's run with its recorded input; None for standard input.

    The `reader` reads URLs. Raises UsageError.
    """
    store = open_store(output)
    request = reopened_request(output, record_of(output, store))
    return recorded_rows(store, request, reader)
