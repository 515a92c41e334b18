"""The summary of a run and the commands to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgcli.cli.job.input import RunInput, unit_of
from pgcli.cli.job.plan_table import ignored_facts
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.options import OutputOptions
from pgcli.cli.ui.console import Facts, Screen
from pgcli.cli.ui.duration import duration
from pgcli.cli.ui.wording import count
from pgcli.pipeline import Tally
from pgcli.remote.urls import without_credentials
from pgcli.sources.paths import url_scheme
from pgcli.state.run_state import RunState

MAX_COMMAND_LENGTH = 300  # characters of a command that is shown to be copied


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds from the start of the command to its end, and to the first image."""

    total: float
    loading: float


def show(
    screen: Screen,
    plan: RunInput,
    engine: RunEngine,
    tally: Tally,
    times: RunTimes,
    hook_facts: Facts,
) -> None:
    """Show what a run did and the commands to run next.

    One image whose answer is on the same terminal gets one sentence.
    """
    if plan.rows == 1 and screen.shows_rows and not plan.options.running.verbose:
        screen.info(sentence(plan, engine, tally, times))
        return
    screen.table(facts(plan, engine, tally, times, hook_facts))
    if plan.options.output.output != "-" or screen.shows_rows:
        screen.next_steps(list(next_steps(plan.options.output, tally, plan.options.arguments)))


def facts(
    plan: RunInput, engine: RunEngine, tally: Tally, times: RunTimes, hook_facts: Facts = ()
) -> list[tuple[str, str]]:
    """Rows, speed, times, model and output of a run, and what its row hooks report."""
    output = plan.options.output.output
    return [
        ("rows", rows(tally)),
        *ignored_facts(plan.source.ignored),
        ("speed", speed(plan, tally)),
        ("time", f"{duration(times.total)}, of which {duration(times.loading)} to load the model"),
        *image_times(plan, tally),
        ("model", f"{engine.label} on {engine.device} in {engine.dtype}, {batch_limit(engine)}"),
        *plan.plan.task.model_facts(engine),
        *engine_facts(engine),
        *hook_facts,
        *([("output", output)] if output != "-" else []),
    ]


def sentence(plan: RunInput, engine: RunEngine, tally: Tally, times: RunTimes) -> str:
    """The summary of one image or text."""
    busy = ""
    if not plan.plan.question.embeds_texts:
        waited = duration(tally.waited_seconds)
        busy = f"; busy {busy_times(plan, tally)}; waited {waited} for the image"
    return (
        f"{duration(times.total)}, of which {duration(times.loading)} to load the model{busy}; "
        f"{engine.label} on {engine.device} in {engine.dtype}"
    )


def image_times(plan: RunInput, tally: Tally) -> Facts:
    """The time of the model, and for how long it waited for images; nothing for texts."""
    if plan.plan.question.embeds_texts:
        return []
    return [
        ("model busy", busy_times(plan, tally)),
        ("model waited", f"{duration(tally.waited_seconds)} for images"),
    ]


def rows(tally: Tally) -> str:
    """The number of rows, and of those with errors by their codes."""
    before = f" in addition to {tally.rows_before:,} from before" if tally.rows_before else ""
    if not tally.errors:
        return f"{tally.rows:,}{before}, all answered"
    codes = ", ".join(f"{code} {count:,}" for code, count in tally.errors.most_common())
    return f"{tally.rows:,}{before}, of which {tally.errors.total():,} with errors: {codes}"


def speed(plan: RunInput, tally: Tally) -> str:
    """Images or texts, and tokens per second."""
    seconds = tally.seconds or 1e-9
    images = f"{tally.images / seconds:.1f} {unit_of(plan.plan)}/s"
    return f"{images}, {tally.tokens / seconds:.0f} tokens/s" if tally.tokens else images


def batch_limit(engine: RunEngine) -> str:
    """The largest batch of a run."""
    return "row by row" if engine.batch_size == 1 else f"up to {engine.batch_size} rows at once"


def engine_facts(engine: RunEngine) -> Iterator[tuple[str, str]]:
    """Image-feature cache hits, and how far batches shrank because memory ran out."""
    images = engine.image_stats
    if images.hits:
        yield "images reused", f"{images.hits:,} of {images.prompts:,} prompts"
    if shrunk := engine.batch_limits.summary():
        yield "memory ran out", shrunk


def busy_times(plan: RunInput, tally: Tally) -> str:
    """The time of the model, in all and by the stages that rows have times of."""
    stages = {"vision": tally.vision_ms, "prefill": tally.prefill_ms, "decode": tally.decode_ms}
    columns = plan.plan.question.columns
    stages = {name: ms for name, ms in stages.items() if f"{name}_ms" in columns}
    parts = ", ".join(f"{stage} {duration(ms / 1000)}" for stage, ms in stages.items())
    return f"{duration(sum(stages.values()) / 1000)}: {parts}"


def next_steps(
    chosen: OutputOptions, tally: Tally, arguments: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Commands to copy, after a run with these command-line arguments."""
    output = chosen.output
    if output == "-":
        yield "save them", "the same command with -o rows.jsonl, then pgcli view rows.jsonl"
        return
    file = shlex.quote(output)
    if url_scheme(output) is not None:
        yield "see it", f"pgcli status {file}"
        return
    if chosen.format == "text":
        yield "read it", f"less {file}"
        return
    yield "view it", f"pgcli view {file}"
    if not tally.errors:
        return
    if Path(output).suffix.lower() == ".parquet" or output.endswith("/"):
        parts = f"{output}*.parquet" if output.endswith("/") else output
        literal = "'" + parts.replace("'", "''") + "'"
        query = f"select id, error_message from {literal} where error is not null"
        is_plain = not set(query) & set('"$`\\!')
        yield "errors", f'duckdb -c "{query}"' if is_plain else f"duckdb -c {shlex.quote(query)}"
    else:
        yield "errors", f"jq -r 'select(.error) | .id + \": \" + .error_message' {file}"
    yield "retry them", retry_command(arguments)


def retry_command(arguments: Sequence[str]) -> str:
    """The command that retries rows with errors, where it is short and holds no password."""
    kept = [word for word in arguments if word not in ("--overwrite", "--retry-errors")]
    command = shlex.join(["pgcli", *kept[:1], "--retry-errors", *kept[1:]])
    if any(word.startswith(("--join", "--ray")) for word in arguments):
        return "the same command with --retry-errors, without --join and --ray"
    if len(command) > MAX_COMMAND_LENGTH or any(
        word != without_credentials(word) for word in arguments
    ):
        return "the same command with --retry-errors"
    return command


def interrupted_notice(output: str, saved: int, state: RunState | None) -> str:
    """Where the rows of an interrupted run are, and how to resume it."""
    rows = count(saved, "row")
    if output == "-":
        return f"stopped after {rows}"
    if not saved:
        return "stopped before the first row"
    if state is None:
        return f"stopped after {rows}, saved in {output}"
    where = f"saved in {output}"
    if state.extends is not None:
        where = f"saved next to {output}, which keeps its rows until all of them are there"
    elif Path(output).suffix.lower() == ".parquet":
        where = f"saved next to {output}, which appears when it is complete"
    return f"stopped after {rows}, {where}; the same command resumes the run"
