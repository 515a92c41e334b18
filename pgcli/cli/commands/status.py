"""status: the progress of a run, during and after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgcli.cli.exit_codes import exit_code_text
from pgcli.cli.options import CliCall, JsonOptions, command
from pgcli.cli.ui import stdout
from pgcli.errors import INCOMPLETE, UsageError
from pgcli.wording import count, duration, listed

if TYPE_CHECKING:
    from pgcli.pipeline.status import RunStatus, ShardStatus

MAX_NAMES = 8  # of shards in one state
#: The states of shards as they are shown, in their order.
STATES = {
    "running": "running",
    "complete": "complete",
    "stopped": "stopped",
    "waiting": "not begun",
}


@command(
    "status",
    "OUTPUT is the file or folder of its rows, or the folder of a training run, as it was given to "
    "-o.",
    JsonOptions,
    examples="$ pgcli status captions.jsonl\n$ pgcli status captions.jsonl --json",
)
def status(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)], call: CliCall
) -> None:
    from pgcli.inputs.paths import url_scheme
    from pgcli.pipeline.status import read_status
    from pgcli.stores.urls import is_in_object_store, without_credentials
    from pgcli.training.status import read_training_status

    if url_scheme(output) is not None and not is_in_object_store(output):
        raise UsageError(
            f"no run writes to {without_credentials(output)}",
            hint="name a file, a folder, or a folder in an object store: s3://bucket/rows/",
        )
    has_json = call.build(JsonOptions).json
    if (training := read_training_status(output)) is not None:
        if has_json:
            stdout.print_json(asdict(training))
        else:
            stdout.print_facts(training.facts())
        return
    run_status = read_status(output)
    if has_json:
        stdout.print_json(asdict(run_status))
    else:
        for line in lines(run_status):
            stdout.print_line(line)


def lines(status: RunStatus) -> Iterator[str]:
    """How the run stands, then what computes it, then what to do about what is missing."""
    errors = ", ".join(f"{code} {rows:,}" for code, rows in sorted(status.errors.items()))
    with_errors = (
        f"{sum(status.errors.values()):,} with errors: {errors}" if errors else "no errors"
    )
    yield f"{status.output}: {status.state}, {row_count(status)}, {with_errors}"
    if status.surplus:
        yield f"{count(status.surplus, 'row')} of images that are not in the input any more"
    if status.runs:
        processes = f"{len(status.runs):,} processes: " if len(status.runs) > 1 else ""
        yield f"run by {processes}{listed([process(run) for run in status.runs], MAX_NAMES)}"
        if status.rows_per_second is not None:
            seconds = status.seconds_left
            remaining = "" if seconds is None else f", {duration(seconds)} left"
            yield f"{status.rows_per_second:,.1f} rows/s{remaining}"
        if status.engines or status.dead_engines:
            dead = f", {status.dead_engines:,} died" if status.dead_engines else ""
            yield f"{count(status.engines, 'engine')}{dead}"
    for run in status.lost[-MAX_NAMES:]:
        yield f"killed: {process(run)}, silent for {duration(run['silent_seconds'])}"
    if status.shards and status.state != "complete":
        yield shards(status.shards)
    if status.state == "stopped":
        # the exit code of shards that ended as they should is not that of the run
        is_of_shards = bool(status.shards) and status.exit_code in (0, INCOMPLETE)
        if status.exit_code is not None and not is_of_shards:
            yield f"exit code {exit_code_text(status.exit_code)}"
        yield f"to resume: {how_to_resume(status.shards)}"


def row_count(status: RunStatus) -> str:
    """The rows that are saved, of how many, and their share."""
    if status.total is None or status.state == "complete":
        return count(status.rows, "row")
    share = f" ({status.rows / status.total:.1%})" if status.total else ""
    return f"{status.rows:,} of {count(status.total, 'row')}{share}"


def process(run: dict[str, Any]) -> str:
    """The process and the host of a run, and its shard."""
    shard = f", shard {run['shard']}" if "shard" in run else ""
    return f"process {run.get('pid')} on {run.get('host')}{shard}"


def how_to_resume(shards: Sequence[ShardStatus]) -> str:
    """What adds the rows that are missing."""
    missing = [shard.shard for shard in shards if shard.state in ("stopped", "waiting")]
    if not missing:
        return "run the same command again"
    return f"run the same command with --shard {listed(missing, MAX_NAMES)}"


def shards(statuses: Sequence[ShardStatus]) -> str:
    """The shards in each state, by their names: `shards: 1 complete (0/2), 1 not begun (1/2)`."""
    parts = []
    for state, shown in STATES.items():
        names = [shard.shard for shard in statuses if shard.state == state]
        if names:
            parts.append(f"{len(names):,} {shown} ({listed(names, MAX_NAMES)})")
    return f"shards: {', '.join(parts)}"
