"""check: compare every row of an output with its input."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli.cli.options import CliCall, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.errors import Difference, UsageError
from pgcli.text import count

if TYPE_CHECKING:
    from pgcli.results.check import RowComparison


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
        stdout.print_line("the run is in progress and has saved no rows yet")
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
        stdout.print_line(line)
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
    stdout.print_line(f"{rows} {matched}{errors}")
    stdout.print_line(f"compared: {', '.join(comparison.compared)}")
    if omissions := "; ".join(not_compared(comparison)):
        stdout.print_line(f"not compared: {omissions}")
