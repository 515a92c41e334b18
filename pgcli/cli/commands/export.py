"""export: write result files in the format of another tool."""

from __future__ import annotations

import typer

from pgcli import registry
from pgcli.cli.options import AddressOptions, CliCall, FileArgs, QuietOptions, command
from pgcli.cli.ui.console import BAR_DELAY, Screen
from pgcli.errors import INCOMPLETE, UsageError
from pgcli.results.options import ExportOptions
from pgcli.run.request.questions import BoxOptions


@command(
    "export",
    "RESULTS are result files (.jsonl or .parquet) or folders of Parquet files; rows of the same "
    "image are combined, and failed rows are skipped.",
    ExportOptions,
    BoxOptions,
    AddressOptions,
    QuietOptions,
    examples="$ pgcli export boxes.jsonl --to coco -o boxes.json\n"
    "$ pgcli export captions.jsonl --to txt",
)
def export(results: FileArgs, call: CliCall) -> None:
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.results.exports.export import export as write_export

    screen, options = Screen(quiet=call.quiet, bar_delay=BAR_DELAY), call.build(ExportOptions)
    format = registry.load("exports", options.to)
    thresholds = call.typed & {*BoxOptions.__slots__}
    call.report_unused(format.unused, f"on {options.to}", screen)
    if format.is_merged and thresholds:
        raise UsageError(
            f"{options.to} exports answers unchanged, with all boxes",
            hint=f"omit --{min(thresholds).replace('_', '-')}",
        )
    box_filter = call.build(BoxOptions).box_filter
    url_reader = call.build(AddressOptions).url_reader
    counts = write_export(results, options, box_filter, url_reader, RunOnScreen(screen))
    if counts.missing.count or counts.unnamed:
        raise typer.Exit(INCOMPLETE)
