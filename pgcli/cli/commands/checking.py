"""Commands that look at outputs: status, check and diff."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.cli.console import BAR_DELAY, Screen, is_terminal, print_facts, print_json, print_line
from pgcli.cli.exits import exit_code_text
from pgcli.cli.options import CliCall, JsonOptions, command
from pgcli.declare import opt, same
from pgcli.errors import INCOMPLETE, Difference, OutputInUse, UsageError
from pgcli.rows import CUT_ANSWERS, json_safe, json_text, prompt_of, read_boxes
from pgcli.run.options import RunningOptions
from pgcli.text import count, duration, listed, note

if TYPE_CHECKING:
    from pgcli.output.reader import Row
    from pgcli.results.check import RowComparison
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
    from pgcli.training.run_files import read_training_status

    if url_scheme(output) is not None and not is_in_object_store(output):
        raise UsageError(
            f"no run writes to {without_credentials(output)}",
            hint="name a file, a folder, or a folder in an object store: s3://bucket/rows/",
        )
    options = call.build(StatusOptions)
    if (training := read_training_status(output)) is not None:
        if options.json:
            print_json(asdict(training))
        else:
            print_facts(training.facts())
        code = exit_code_of(training.state)
        raise typer.Exit(code if options.exit_code else 0)
    run_status = read_status(output)
    if options.json:
        print_json(asdict(run_status))
    else:
        for line in lines(run_status):
            print_line(line)
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
        missing = [shard.shard for shard in status.shards if shard.state != "complete"]
        resume = "run the same command"
        if status.owner is not None and status.owner.state == "suspended":
            resume = f"kill -CONT {status.owner.pid} on {status.owner.host}"
        elif missing:
            resume += f" with --shard {listed(missing)}"
        else:
            resume += " again"
        yield f"to resume: {resume}"


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


@command(
    "check",
    "Each input must have exactly one row per prompt, in order, and the input files must have the "
    "recorded names, sizes and times; otherwise the exit code is 5. During a run, check compares "
    "the rows saved so far. OUTPUT is the file or folder given to -o.",
    examples="$ pgcli check captions.jsonl",
)
def check(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)], call: CliCall
) -> None:
    from pgcli.results.check import RowComparison, checked_rows
    from pgcli.run.state.lines import OutputEdited
    from pgcli.run.status import RunStatus, read_status
    from pgcli.stores.urls import is_in_object_store, without_credentials

    if is_in_object_store(output):
        raise UsageError(
            f"{without_credentials(output)} is in an object store",
            hint="check reads local outputs only; pgcli status counts the saved rows",
        )
    status = RunStatus(output)
    with suppress(OutputEdited):  # the differences say more
        status = read_status(output)
    comparison = RowComparison(is_running=status.state == "running")
    if comparison.is_running and not status.rows:
        print_line("the run is in progress and has saved no rows yet")
        return
    rows = checked_rows(output, comparison)
    try:
        with Screen().progress("check", status.total) as progress:
            for _ in progress.track(rows):
                pass
    except (OSError, ValueError) as problem:
        comparison.add(f"{output} cannot be read: {problem}")
    show_check(output, comparison)


def show_check(output: str, comparison: RowComparison) -> None:
    """Print the result. Raises Difference if the rows do not match the input."""
    from pgcli.results.check import not_compared

    for line in comparison.first_differences:
        print_line(line)
    if comparison.differences:
        not_shown = comparison.differences - len(comparison.first_differences)
        more = f", {not_shown:,} of them not shown" if not_shown else ""
        differences = count(comparison.differences, "difference")
        raise Difference(
            f"{differences} between {output} and its input{more}",
            hint=comparison.remedy,
        )
    errors = f", {comparison.errors:,} of them with errors" if comparison.errors else ""
    matched = "are in order" if comparison.is_stdin else "match the input, in order"
    rows = f"all {comparison.rows:,} rows"
    if comparison.is_running:
        rows = f"the run is in progress; {rows} so far"
    elif comparison.gone:
        rows = f"{comparison.rows - comparison.gone:,} of {comparison.rows:,} rows"
    print_line(f"{rows} {matched}{errors}")
    print_line(f"compared: {', '.join(comparison.compared)}")
    if omissions := "; ".join(not_compared(comparison)):
        print_line(f"not compared: {omissions}")


COMPARED = ("answer", "boxes", "scores", "labels", "embedding", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """The options of `diff`."""

    format: Literal["auto", "jsonl", "text"] = opt(
        "Format of the output; auto is text on a terminal, else jsonl.",
        panel="Where to",
        default="auto",
        own=True,
    )
    verbose: bool = same(
        RunningOptions, "verbose", help="Also print the rows that only one of the files has."
    )
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "diff",
    "Rows are matched by id and prompt. pgcli compares answers, errors, and the labels and corners "
    "of boxes, and cosines and embeddings within 0.001, but not scores and times. It counts the "
    "rows that only one file has. The exit code is 5 if anything differs.",
    DiffOptions,
    examples="$ pgcli diff captions.jsonl again.jsonl --format text",
)
def diff(
    first: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    second: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    call: CliCall,
) -> None:
    from pgcli.output.reader import read_results
    from pgcli.results.merge import is_same_answer, paired_rows

    screen = Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    options, names = call.build(DiffOptions), (first, second)
    is_text = options.format == "text" or (options.format == "auto" and is_terminal(sys.stdout))
    show = print_rows_as_text if is_text else print_rows_as_json
    counts: Counter[str] = Counter()
    with screen.progress("reading rows") as progress:
        files = [read_results(Path(name)) for name in names]
        for before, after in paired_rows(progress.track(files[0]), files[1]):
            if before is not None and after is not None and is_same_answer(before, after):
                counts["equal"] += 1
                continue
            side = names[before is None] if before is None or after is None else ""
            counts[f"only in {side}" if side else "different"] += 1
            if not side or options.verbose:
                show(before, after)
    summary = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    if counts.keys() - {"equal"}:
        hint = f"pgcli view {shlex.join(names)} shows them"
        if not options.verbose and counts.keys() - {"equal", "different"}:
            hint += "; --verbose prints the rows of one file too"
        raise Difference(f"rows: {summary}", hint=hint)
    screen.info(f"rows: {summary or 'none'}")


def print_rows_as_json(first: Row | None, second: Row | None) -> None:
    """Print a line of JSON: the id, the prompt, and what each file says, null for no row."""
    row = first if first is not None else second
    assert row is not None
    line: dict[str, Any] = {"id": row["id"], "prompt": prompt_of(row)}
    for name, side in (("first", first), ("second", second)):
        line[name] = side and {column: side[column] for column in COMPARED if column in side}
    print_line(json_text(json_safe(line)))


def shown_answer(row: Row) -> Iterator[str]:
    """The lines of a row's answer: its text and its boxes, or its scores or embedding."""
    from pgcli.output.lines import BOX_TOKENS, box_line

    answer = row.get("answer")
    try:
        boxes = read_boxes(row.get("boxes") or ())
    except ValueError:  # of another program
        boxes = ()
    others = (row[name] for name in ("scores", "embedding") if name in row)
    text = json_text(next(others, None)) if answer is None else str(answer)
    yield " ".join(BOX_TOKENS.sub(" ", text).split()) if boxes else text
    yield from map(box_line, boxes)


def print_rows_as_text(first: Row | None, second: Row | None) -> None:
    """Print the id and the prompt, and what each file says in a line of its own."""
    row = first if first is not None else second
    assert row is not None
    print_line(f"{row['id']}: {prompt_of(row)}".rstrip(": "))
    for sign, side in (("-", first), ("+", second)):
        if side is not None:
            is_error = side["error"] is not None
            for text in [f"error {side['error']}"] if is_error else shown_answer(side):
                print_line(f"{sign} {text}")
