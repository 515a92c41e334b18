"""status: the progress of a run, during and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgcli.cli.exit_codes import exit_code_text
from pgcli.cli.options import Given, JsonOptions, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Facts
from pgcli.errors import UsageError
from pgcli.wording import count, duration, listed

if TYPE_CHECKING:
    from pgcli.run.status import RunStatus, ShardStatus

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
    output: Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)], given: Given
) -> None:
    from pgcli.inputs.paths import url_scheme
    from pgcli.run.status import read_status
    from pgcli.stores.urls import is_in_object_store, without_credentials
    from pgcli.training.status import read_training_status

    if url_scheme(output) is not None and not is_in_object_store(output):
        raise UsageError(
            f"no run writes to {without_credentials(output)}",
            hint="name a file, a folder, or a folder in an object store: s3://bucket/rows/",
        )
    has_json = given.build(JsonOptions).json
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
        stdout.print_facts(facts(run_status))


def facts(status: RunStatus) -> Facts:
    """The status as the rows of a table."""
    errors = ", ".join(f"{code} {rows:,}" for code, rows in sorted(status.errors.items()))
    rows = [
        ("output", status.output),
        ("state", status.state),
        ("rows", row_count(status)),
        ("errors", errors or "none"),
    ]
    if status.surplus:
        rows.append(("surplus", f"{count(status.surplus, 'row')} of images no longer in the input"))
    if status.rows_per_second is not None:
        rows.append(("speed", f"{status.rows_per_second:,.1f} rows/s"))
    if status.seconds_left is not None:
        rows.append(("time left", duration(status.seconds_left)))
    rows += [("run by", process(run)) for run in status.runs]
    rows += [
        ("killed", f"{process(run)}, silent for {duration(run['silent_seconds'])}")
        for run in status.lost
    ]
    if status.shards:
        rows.append(("shards", shards(status.shards)))
    if status.exit_code is not None:
        rows.append(("exit code", exit_code_text(status.exit_code) + of_shards(status)))
    if status.state == "stopped":
        rows.append(("to resume", how_to_resume(status.shards)))
    return rows


def row_count(status: RunStatus) -> str:
    """The rows that are saved, of how many, and their share."""
    of = f" of {status.total:,}" if status.total is not None else ""
    share = f" ({status.rows / status.total:.1%})" if status.total else ""
    return f"{status.rows:,}{of}{share}"


def process(run: dict[str, Any]) -> str:
    """The process and the host of a run, and its shard."""
    shard = f", shard {run['shard']}" if "shard" in run else ""
    return f"process {run.get('pid')} on {run.get('host')}{shard}"


def of_shards(status: RunStatus) -> str:
    """How many of the shards the exit code is of, unless all rows are there."""
    ended, count = sum(shard.exit_code is not None for shard in status.shards), len(status.shards)
    if status.state == "complete" or ended == count:
        return ""
    return f" ({ended:,} of {count:,} shards)"


def how_to_resume(found: Sequence[ShardStatus]) -> str:
    """What adds the rows that are missing."""
    missing = [shard.shard for shard in found if shard.state in ("stopped", "waiting")]
    if not missing:
        return "run the same command again"
    return f"run the same command with --shard {listed(missing, MAX_NAMES)}"


def shards(found: Sequence[ShardStatus]) -> str:
    """The shards in each state, by their names."""
    parts = []
    for state, shown in STATES.items():
        names = [shard.shard for shard in found if shard.state == state]
        if names:
            parts.append(f"{len(names):,} {shown}: {listed(names, MAX_NAMES)}")
    return "; ".join(parts)
