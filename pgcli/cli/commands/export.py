"""export: the rows of a result file in the format of another tool."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcli.cli.options import AllowPrivateHosts, AllowUrls, Debug, Quiet, option
from pgcli.cli.program import PgcliCommand, app
from pgcli.cli.ui.console import Screen
from pgcli.views.exports import FORMATS

if TYPE_CHECKING:
    from pgcli.cli.result_files.export_options import ExportOptions

INCOMPLETE = 3  # exit code if images or texts are missing


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Look at answers",
    help="Write answers in the formats of other tools.\n\n"
    "RESULTS is a JSON lines or Parquet file, or a folder of Parquet files, that an answering "
    "command wrote. Rows with errors are left out.",
    epilog="$ pgcli export boxes.jsonl --to coco -o boxes.json\n"
    "$ pgcli export captions.jsonl --to txt",
)
def export(
    results: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    to: Annotated[
        str,
        option(
            "Output",
            "--to",
            metavar="FORMAT",
            once=False,
            choices=tuple(FORMATS),
            help=", ".join(FORMATS) + ".",
        ),
    ],
    output: Annotated[
        str | None,
        option(
            "Output",
            "--output",
            "-o",
            metavar="PATH",
            once=False,
            help="The file or folder to write; txt and caption default to the images' folders.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, option("Output", "--overwrite", once=False, help="Replace an earlier export.")
    ] = False,
    prompt: Annotated[
        str | None,
        option(
            "Rows", "--prompt", metavar="TEXT", once=False, help="Only the rows of this prompt."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        option(
            "Boxes",
            "--labels",
            metavar="A,B|FILE",
            once=False,
            default="all, sorted",
            help="The labels in order, or a file with one on each line.",
        ),
    ] = None,
    pictures: Annotated[
        Literal["link", "copy", "none"] | None,
        option(
            "Images",
            "--pictures",
            metavar="HOW",
            once=False,
            default="link",
            help="yolo, imagefolder, fiftyone: link or copy the images into the folder, or none; "
            "an image that is not a file is copied.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        option(
            "Images",
            "--root",
            metavar="DIR",
            once=False,
            help="coco, labelstudio: write image paths relative to this folder.",
        ),
    ] = None,
    image_prefix: Annotated[
        str | None,
        option(
            "Images",
            "--image-prefix",
            metavar="URL",
            once=False,
            help="labelstudio: the address of the images, without their names.",
        ),
    ] = None,
    prepend: Annotated[
        str | None,
        option("Texts", "--prepend", metavar="TEXT", once=False, help="Start each text with this."),
    ] = None,
    append: Annotated[
        str | None,
        option("Texts", "--append", metavar="TEXT", once=False, help="End each text with this."),
    ] = None,
    existing: Annotated[
        Literal["skip", "overwrite", "append"] | None,
        option(
            "Texts",
            "--existing",
            metavar="WHAT",
            once=False,
            default="skip",
            help="What to do with an existing text: skip, overwrite or append.",
        ),
    ] = None,
    csv_raw: Annotated[
        bool,
        option(
            "Texts",
            "--csv-raw",
            once=False,
            help="Write texts unchanged, even if a spreadsheet takes them for formulas.",
        ),
    ] = False,
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli.result_files.export_options import ExportOptions

    options = ExportOptions(
        prompt=prompt,
        overwrite=overwrite,
        labels=labels,
        pictures=pictures,
        root=root,
        image_prefix=image_prefix,
        prepend=prepend,
        append=append,
        existing=existing,
        csv_raw=csv_raw or None,
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
    )
    if code := run_export(results, to, output, options, Screen(quiet=quiet)):
        raise typer.Exit(code)


def run_export(
    path: str, to: str, output: str | None, options: ExportOptions, screen: Screen
) -> int:
    """Write the export, and return the exit code. The rows are read twice: first for statistics.

    Raises UsageError, NoInputError, OutputExists and OutputFailed.
    """
    from pgcli.cli.result_files.export_entries import ExportEntries
    from pgcli.cli.result_files.export_options import (
        check_options,
        check_output,
        check_rows,
        find_format,
    )
    from pgcli.cli.result_files.run_info import incomplete_note
    from pgcli.cli.result_files.validate_rows import collect_stats
    from pgcli.cli.result_files.write_export import report_export, write_export
    from pgcli.sinks.reader import read_results

    format = find_format(to)
    check_options(to, format, options)
    target = check_output(to, format, path, output, overwrite=options.overwrite)
    note = incomplete_note(Path(path))
    with screen.progress("reading rows") as progress:
        stats = collect_stats(progress.track(read_results(Path(path))), options.prompt)
    check_rows(to, format, path, stats, options)
    wanted, search = options.wanted(format, stats), options.search(screen.info)
    images = ExportEntries(Path(path), format, wanted, search)
    if not format.is_merged:
        images.check_sources(target)
    # a run that is not finished may have added rows since the statistics were collected
    rows = islice(read_results(Path(path)), stats.rows)
    with screen.progress("images", stats.images, unit="images") as progress:
        entries = progress.track(images.entries(rows, options.prompt, options.root))
        write_export(format, target, entries, wanted, overwrite=options.overwrite)
    report_export(to, output or "files next to the images", stats, wanted.counts, search)
    if note:
        search.report(f"{note}; the export ends there")
    return INCOMPLETE if wanted.counts.missing.count or wanted.counts.unnamed else 0
