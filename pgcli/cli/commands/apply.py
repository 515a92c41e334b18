"""apply: write result files with the edits of a results page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcli.cli.options import CliCall, FileOptions, command
from pgcli.cli.ui.console import BAR_DELAY, Screen
from pgcli.declare import opt
from pgcli.errors import INCOMPLETE, UsageError
from pgcli.text import count, listed, with_notes

if TYPE_CHECKING:
    from pgcli.results.edits import MatchedEdits, WantedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions(FileOptions):
    """The options of `apply`."""

    rows: Literal["not-rejected", "accepted", "all"] = opt(
        "Rows to write: not-rejected, accepted (unreviewed rows are dropped), or all.",
        panel="Where to",
        metavar="WHICH",
        default="not-rejected",
        own=True,
    )


@command(
    "apply",
    "EDITS is the file that a page of pgcli view saved, RESULTS the result file that the page "
    "shows. If the row of an edit is missing or its answer has changed, pgcli skips the edit, "
    "lists it, and exits with 3.",
    ApplyOptions,
    examples="$ pgcli apply captions.edits.json captions.jsonl -o corrected.jsonl",
)
def apply(
    edits: Annotated[str, typer.Argument(metavar="EDITS", hidden=True)],
    results: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    call: CliCall,
) -> None:
    options, screen = call.build(ApplyOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    if code := run_apply(Path(edits), Path(results), options, screen):
        raise typer.Exit(code)


def run_apply(file: Path, results: Path, options: ApplyOptions, screen: Screen) -> int:
    """Write the corrected rows; return 3 if edits were not applied."""
    from pgcli.output.reader import read_results
    from pgcli.output.result_file import result_target, write_result_file
    from pgcli.results.edits import EditedRows, match_edits, read_edits
    from pgcli.rows import RowSchema

    target, wanted = result_target(options.output, overwrite=options.overwrite), options.rows
    edits = read_edits(file)
    with screen.progress("reading rows") as progress:
        matched = match_edits(edits, results, progress.track(read_results(results)))
    if edits and not matched.applied:
        raise UsageError(
            f"none of the edits in {file} match {results}",
            hint="name the result file that the page shows; if it was written again, make a new "
            "page with pgcli view",
        )
    reviewed = EditedRows(results, matched, wanted)
    schema = RowSchema.of(matched.columns)
    with screen.status("writing rows"):
        write_result_file(target, lambda: reviewed, schema)
    screen.info(f"{target.name}: {apply_summary(reviewed.counts, matched, wanted)}")
    return report_unapplied(matched, screen)


def apply_summary(counts: Mapping[str, int], matched: MatchedEdits, wanted: WantedRows) -> str:
    """How many rows were written, and how many have which review."""
    fate = " and dropped"
    notes = [
        (counts["accepted"] - counts["corrected"], "accepted"),
        (counts["corrected"], "corrected"),
        (counts["rejected"], f"rejected{fate if wanted != 'all' else ''}"),
        (counts["open"], f"not reviewed{fate if wanted == 'accepted' else ''}"),
        (matched.elsewhere, "edits of other files"),
    ]
    return with_notes(count(counts["rows"], "row"), notes)


def report_unapplied(matched: MatchedEdits, screen: Screen) -> int:
    """Name the edits that were not applied; return 3 if there are any."""
    for edits, reason in (
        (matched.changed, "the answer has changed"),
        (matched.missing, "the row is missing"),
    ):
        if edits:
            screen.info(
                f"not applied, {reason}: {listed(edits, separator=';')}",
                hint="make the page again with pgcli view, and review these rows there",
            )
    return INCOMPLETE if matched.changed or matched.missing else 0
