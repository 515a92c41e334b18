"""merge: combine result files into one, with one row for each image and prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pgcli.cli.options import CliCall, FileArgs, FileOptions, command
from pgcli.cli.ui.console import BAR_DELAY, Screen
from pgcli.errors import INCOMPLETE
from pgcli.text import count, with_notes

if TYPE_CHECKING:
    from pgcli.results.merge import MergeStats


@command(
    "merge",
    "The result has one row for each image and prompt, in the order of the input. If several "
    "files contain the same row, pgcli keeps the first answer, or an error if there is none.",
    FileOptions,
    examples="$ pgcli merge captions.jsonl boxes.jsonl -o both.jsonl",
)
def merge(results: FileArgs, call: CliCall) -> None:
    options, screen = call.build(FileOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    if code := run_merge([Path(name) for name in results], options, screen):
        raise typer.Exit(code)


def run_merge(outputs: list[Path], options: FileOptions, screen: Screen) -> int:
    """Write the merged file; return 3 if rows with errors remain."""
    from pgcli.output.reader import read_results
    from pgcli.output.result_file import result_target, write_result_file
    from pgcli.results.merge import MergedRows
    from pgcli.rows import RowSchema

    target = result_target(options.output, overwrite=options.overwrite)
    with screen.progress("reading rows") as progress:
        rows = (row for path in outputs for row in read_results(path))
        schema = RowSchema.of(name for row in progress.track(rows) for name in row)
    merged = MergedRows(outputs)
    with screen.status("writing rows"):
        write_result_file(target, lambda: merged, schema)
    screen.info(f"{target.name}: {merge_summary(merged.stats)}")
    return INCOMPLETE if merged.stats.errors else 0


def merge_summary(stats: MergeStats) -> str:
    """How many rows there are, and how many were skipped or replaced."""
    notes = [
        (stats.errors, "with errors"),
        (stats.repeated, "repeated rows skipped"),
        (stats.replaced, "errors replaced by answers"),
        (stats.conflicts, "with a different answer in a later file, which is ignored"),
    ]
    return with_notes(count(stats.rows, "row"), notes)
