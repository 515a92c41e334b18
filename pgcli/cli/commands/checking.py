"""status: the progress of a run, during and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli.cli.exit_codes import exit_code_text
from pgcli.cli.options import CliCall, JsonOptions, command
from pgcli.cli.ui import stdout
from pgcli.declare import opt
from pgcli.errors import INCOMPLETE, OutputInUse, UsageError
from pgcli.rows import CUT_ANSWERS
from pgcli.text import count, duration, listed, note

if TYPE_CHECKING:
    from pgcli.run.status import OwnerStatus, RunStatus, ShardStatus

MAX_SHARDS = 32  # that are shown
#: The states of shards, the most urgent first.
STATES = ("lost", "stopped", "running", "waiting", "complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions(JsonOptions):
    """The options of `status`."""

    exit_code: bool = opt(
        "Exit with 3 if rows are missing or failed, and with 12 during the run.",
        panel="How to run",
        default=False,
        own=True,
    )


@command(
    "status",
    "OUTPUT is the file or folder given to -o of an answering or training run. With --exit-code, "
    "the exit code is 0 only if the run is complete and every row has an answer.",
    StatusOptions,
    examples="$ pgcli status captions.jsonl\n$ pgcli status captions.jsonl --exit-code",
)
def status(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)], call: CliCall
) -> None:
    from pgcli.run.status import read_status
    from pgcli.stores.urls import is_in_object_store, url_scheme, without_credentials
    from pgcli.training.status import read_training_status

    if url_scheme(output) is not None and not is_in_object_store(output):
        raise UsageError(
            f"no run writes to {without_credentials(output)}",
            hint="name a file, a folder, or a folder in an object store: s3://bucket/rows/",
        )
    options = call.build(StatusOptions)
    if (training := read_training_status(output)) is not None:
        if options.json:
            stdout.print_json(asdict(training))
        else:
            stdout.print_facts(training.facts())
        code = exit_code_of(training.state)
        raise typer.Exit(code if options.exit_code else 0)
    run_status = read_status(output)
    if options.json:
        stdout.print_json(asdict(run_status))
    else:
        for line in lines(run_status):
            stdout.print_line(line)
    code = exit_code_of(
        run_status.state, has_failed=bool(run_status.errors) and run_status.exit_code != 0
    )
    raise typer.Exit(code if options.exit_code else 0)


def exit_code_of(state: str, *, has_failed: bool = False) -> int:
    """The exit code of `--exit-code` for the state of a run.

    A run whose last command ended with 0 has no failed rows, apart from rows of removed images.
    """
    if state == "running":
        return OutputInUse.exit_code
    return INCOMPLETE if state != "complete" or has_failed else 0


def lines(status: RunStatus) -> Iterator[str]:
    """The state of the run, the commands that compute it, and what to do about missing rows."""
    errors = ", ".join(f"{code} {rows:,}" for code, rows in sorted(status.errors.items()))
    failed = sum(status.errors.values())
    with_errors = f"{failed:,} with errors: {errors}" if failed else "no errors"
    is_complete = status.state == "complete"
    rows = row_count(status.rows, None if is_complete else status.total)
    share = f" ({status.rows / status.total:.1%})" if status.total and not is_complete else ""
    yield f"{status.output}: {status.state}, {rows}{share}, {with_errors}"
    if status.cut:
        yield note(status.cut, CUT_ANSWERS)
    if status.surplus:
        yield f"{count(status.surplus, 'row')} of images that were removed from the input"
    if is_complete:
        return
    if status.owner is not None and (text := writer_text(status.owner)):
        yield text
    if status.shards:
        yield from shard_table(status.shards)
    if status.state == "running" and status.rows_per_second is not None:
        seconds = status.seconds_left
        remaining = "" if seconds is None else f", {duration(seconds)} left"
        yield f"{status.rows_per_second:,.1f} rows/s{remaining}"
        owners = [status.owner, *(shard.owner for shard in status.shards)]
        running = [owner for owner in owners if owner is not None and owner.state == "running"]
        yield from [f"hint: {owner.hint}" for owner in running if owner.hint][:1]
    if status.state == "stopped":
        yield f"to resume: {how_to_resume(status)}"


def row_count(rows: int, total: int | None) -> str:
    """The number of saved rows, and the total if it is known."""
    return count(rows, "row") if total is None else f"{rows:,} of {count(total, 'row')}"


def writer_text(owner: OwnerStatus) -> str:
    """The process and its host while it has not ended; then its exit code, unless it is 0 or 3."""
    process = f"process {owner.pid} on {owner.host}"
    if owner.state == "running":
        return f"run by {process}"
    if owner.exit_code is not None:
        is_usual = owner.exit_code in (0, INCOMPLETE)
        return "" if is_usual else f"exit code {exit_code_text(owner.exit_code)}"
    what = "suspended" if owner.state == "suspended" else "killed or lost"
    return f"{what}: {process}, last heartbeat {duration(owner.silent_seconds or 0)} ago"


def how_to_resume(status: RunStatus) -> str:
    """How to compute the missing rows."""
    if status.owner is not None and status.owner.state == "suspended":
        return f"kill -CONT {status.owner.pid} on {status.owner.host}"
    missing = [shard.shard for shard in status.shards if shard.state != "complete"]
    if not missing:
        return "run the same command again"
    return f"run the same command with --shard {listed(missing)}"


def shard_table(shards: Sequence[ShardStatus]) -> Iterator[str]:
    """How many shards are in each state, then a line for each of the most urgent ones."""
    states = Counter(shard.state for shard in shards)
    yield "shards: " + ", ".join(f"{states[state]:,} {state}" for state in STATES if states[state])
    by_urgency = sorted(shards, key=lambda shard: STATES.index(shard.state))
    shown = [shard for shard in shards if shard in by_urgency[:MAX_SHARDS]]
    cells = [
        (s.shard, s.state, row_count(s.rows, s.total), writer_text(s.owner) if s.owner else "")
        for s in shown
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        columns = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in columns).rstrip()
    if len(shards) > len(shown):
        yield f"and {len(shards) - len(shown):,} more"
