"""What a run did, in a few lines that a person reads at its end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.cli.job.plan import Plan, left_out
from pgcli.cli.options import OutputOptions
from pgcli.cli.ui.console import Facts, Screen
from pgcli.pipeline import Tally
from pgcli.remote.addresses import without_credentials
from pgcli.state.run_state import State

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine

LONGEST = 300  # characters of a command that is shown to be copied


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the command's begin to its end, and those before the first picture."""

    whole: float
    before: float


def show(
    screen: Screen, plan: Plan, engine: Engine, tally: Tally, times: Times, beside: Facts
) -> None:
    """Tell what a run did and what to do next; of one picture whose answer is seen, a sentence."""
    if plan.rows == 1 and screen.has_rows and not plan.options.running.verbose:
        screen.say(in_short(engine, tally, times))
        return
    screen.table(facts(plan, engine, tally, times, beside))
    if plan.options.output.output != "-" or screen.has_rows:
        screen.steps(list(steps(plan.options.output, tally, sys.argv[1:])))


def facts(
    plan: Plan, engine: Engine, tally: Tally, times: Times, beside: Facts = ()
) -> list[tuple[str, str]]:
    """What was done and how fast, where the time went, and where the rows are."""
    return [
        ("rows", rows(tally)),
        *left_out(plan.source.ignored),
        ("speed", speed(tally)),
        ("time", f"{seconds(times.whole)}, of which {seconds(times.before)} to load the model"),
        ("model busy", busy(tally)),
        ("model waited", f"{seconds(tally.waited_seconds)} for pictures"),
        ("model", f"{engine.label} on {engine.device} in {engine.dtype}, {batches(engine)}"),
        *thrift(engine),
        *beside,
        *(("output", name) for name in (plan.options.output.output,) if name != "-"),
    ]


def in_short(engine: Engine, tally: Tally, times: Times) -> str:
    """The same of one picture in a sentence."""
    return (
        f"{seconds(times.whole)}, of which {seconds(times.before)} to load the model; busy "
        f"{busy(tally)}; waited {seconds(tally.waited_seconds)} for the picture; {engine.label} "
        f"on {engine.device} in {engine.dtype}"
    )


def rows(tally: Tally) -> str:
    """How many rows there are, and what is wrong with those that have errors."""
    before = f" on top of {tally.rows_before:,} that were there" if tally.rows_before else ""
    if not tally.errors:
        return f"{tally.rows:,}{before}, all answered"
    codes = ", ".join(f"{code} {count:,}" for code, count in tally.errors.most_common())
    return f"{tally.rows:,}{before}, of which {tally.errors.total():,} with errors: {codes}"


def speed(tally: Tally) -> str:
    spent = tally.seconds or 1e-9
    told = f"{tally.pictures / spent:.1f} images/s"
    return f"{told}, {tally.tokens / spent:.0f} tokens/s" if tally.tokens else told


def batches(engine: Engine) -> str:
    return "row by row" if engine.batch_size == 1 else f"up to {engine.batch_size} rows at once"


def thrift(engine: Engine) -> Iterator[tuple[str, str]]:
    """How often the eye was spared, where it could be, and how far memory made batches shrink."""
    reuse = engine.reuse
    if reuse.is_possible:
        yield "pictures reused", f"{reuse.spared:,} of {reuse.prompts:,} prompts"
    if shrunk := engine.batch_limits.summary():
        yield "memory ran out", shrunk


def busy(tally: Tally) -> str:
    stages = {"vision": tally.vision_ms, "prefill": tally.prefill_ms, "decode": tally.decode_ms}
    parts = ", ".join(f"{stage} {seconds(ms / 1000)}" for stage, ms in stages.items())
    return f"{seconds(sum(stages.values()) / 1000)}: {parts}"


def seconds(count: float) -> str:
    """A duration in words: `0.42 s`, `12.3 s`, `4 min 5 s`, `3 h 2 min`."""
    if count < 60:
        return f"{count:.{2 if count < 10 else 1}f} s"
    minutes, rest = divmod(round(count), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def steps(chosen: OutputOptions, tally: Tally, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What to do next: commands to copy, of a run whose command line had these `words`."""
    output = chosen.output
    if output == "-":
        yield "keep them", "the same command with -o rows.jsonl, then pgcli view rows.jsonl"
        return
    file = shlex.quote(output)
    if chosen.format == "text":
        yield "look at it", f"less {file}"
        return
    yield "look at it", f"pgcli view {file}"
    if not tally.errors:
        return
    if Path(output).suffix.lower() == ".parquet" or output.endswith("/"):
        parts = f"{output}*.parquet" if output.endswith("/") else output
        literal = "'" + parts.replace("'", "''") + "'"
        query = f"select id, error_message from {literal} where error is not null"
        yield "errors", f"duckdb -c {shlex.quote(query)}"
    else:
        yield "errors", f"jq -r 'select(.error) | .id + \": \" + .error_message' {file}"
    yield "ask again", retry(words)


def retry(words: Sequence[str]) -> str:
    """The command that asks rows with errors again, where it is short and has nothing secret."""
    again = [word for word in words if word not in ("--overwrite", "--retry-errors")]
    command = shlex.join(["pgcli", *again[:1], "--retry-errors", *again[1:]])
    if len(command) > LONGEST or any(word != without_credentials(word) for word in words):
        return "the same command with --retry-errors"
    return command


def interrupted_notice(output: str, count: int, state: State | None) -> str:
    """What there is of a run that was cut short, and how to go on."""
    rows = f"{count:,} row{'s' * (count != 1)}"
    if output == "-":
        return f"stopped after {rows}"
    if not count:
        return "stopped before the first row"
    if state is None:
        return f"stopped after {rows}, saved in {output}"
    where = f"saved in {output}"
    if Path(output).suffix.lower() == ".parquet":
        where = f"saved beside {output}, which is there when it is complete"
    return f"stopped after {rows}, {where}; the same command goes on from there"
