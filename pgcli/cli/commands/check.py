"""check: every row of an output read again and compared with its input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli.cli.option import option
from pgcli.cli.typer_app import command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.wording import count
from pgcli.errors import Difference, UsageError

if TYPE_CHECKING:
    from pgcli.cli.result_files.compare_rows import RowComparison
    from pgcli.images import StampComparison
    from pgcli.state.run_record import RunRecord


@command(
    "check",
    "Every row of the input must be there once and in order. Exits with 5 if one is not. "
    "OUTPUT is the file or folder as it was given to -o.",
    epilog="$ pgcli check captions.jsonl",
)
def check(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)],
    verify_input: Annotated[
        bool, option("Input", "--verify-input", own=True, help="Read the images of all rows again.")
    ] = False,
) -> None:
    from pgcli.cli.result_files.check_rows import check_rows
    from pgcli.cli.result_files.compare_rows import RowComparison
    from pgcli.cli.result_files.run_status import read_run_status
    from pgcli.images import StampComparison
    from pgcli.remote.urls import is_in_object_store, without_credentials
    from pgcli.sinks.reader import indexed_rows
    from pgcli.state.run_record import read_record, why_no_record

    if is_in_object_store(output):
        raise UsageError(
            f"{without_credentials(output)} is in an object store, where the inputs of rows are "
            "not recorded",
            hint="check compares outputs of this machine; pgcli status counts the rows that are "
            "stored",
        )
    path = Path(output)
    record = read_record(path)
    if record is None:
        raise UsageError(
            f"{output} has no record of a run, and so no input to compare it with: "
            f"{why_no_record(path)}",
            hint="name an output of a command that answers, as it was given to -o",
        )
    comparison, images = RowComparison(), StampComparison(reads_all=verify_input)
    try:
        with Screen().progress("check", read_run_status(path).total) as progress:
            check_rows(path, record, progress.track(indexed_rows(path)), images, comparison)
    except (OSError, ValueError) as problem:
        comparison.add(f"{output} cannot be read: {problem}")
    show(output, record, comparison, images)


def show(
    output: str, record: RunRecord, comparison: RowComparison, images: StampComparison
) -> None:
    """Print the result. Raises Difference if the rows are not those of the input."""
    from pgcli.cli.result_files.check_report import compared, is_standard_input, not_compared

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
    matched = "are in order" if is_standard_input(record) else "match the input, in order"
    stdout.print_line(f"all {comparison.rows:,} rows {matched}{errors}")
    stdout.print_line(f"compared: {compared(record, comparison, images)}")
    if rest := "; ".join(not_compared(record, comparison, images)):
        stdout.print_line(f"not compared: {rest}")
