"""export: the rows of a result file in the format of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.cli.exit_codes import INCOMPLETE
from pgcli.cli.options import option
from pgcli.cli.shared_options import (
    AllowPrivateHosts,
    AllowUrls,
    MinConfidence,
    MinScore,
    Nms,
    Quiet,
)
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen
from pgcli.results.exports import FORMATS

if TYPE_CHECKING:
    from pgcli.results.exports.export_options import ExportOptions

_option = partial(option, own=True)


@command(
    "export",
    "RESULTS are JSON lines or Parquet files, or folders of Parquet files, that answering commands "
    "wrote; images that several have are combined. Rows with errors are left out.",
    epilog="$ pgcli export boxes.jsonl --to coco -o boxes.json\n"
    "$ pgcli export captions.jsonl --to txt",
)
def export(
    context: typer.Context,
    results: Annotated[list[str], typer.Argument(metavar="RESULTS", hidden=True)],
    to: Annotated[
        str,
        _option(
            "Output",
            "--to",
            metavar="FORMAT",
            choices=tuple(FORMATS),
            help=", ".join(FORMATS) + ".",
        ),
    ],
    output: Annotated[
        str | None,
        _option(
            "Output",
            "--output",
            "-o",
            metavar="PATH",
            help="The file or folder to write; txt and caption default to the images' folders.",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        _option("Output", "--overwrite", help="Replace an earlier export."),
    ] = False,
    prompt: Annotated[
        str | None,
        _option("Rows", "--prompt", metavar="TEXT", help="Only the rows of this prompt."),
    ] = None,
    labels: Annotated[
        str | None,
        _option(
            "Boxes",
            "--labels",
            metavar="A,B|FILE",
            default="all, sorted",
            help="The labels in order, or a file with one on each line.",
        ),
    ] = None,
    min_score: MinScore = None,
    min_confidence: MinConfidence = None,
    nms: Nms = None,
    store_images: Annotated[
        Literal["link", "copy", "none"] | None,
        _option(
            "Images",
            "--store-images",
            default="link",
            help="yolo, imagefolder, fiftyone: link or copy the images into the folder, or none; "
            "an image that is not a file is copied.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        _option(
            "Images",
            "--root",
            metavar="DIR",
            help="coco, labelstudio: write image paths relative to this folder.",
        ),
    ] = None,
    image_prefix: Annotated[
        str | None,
        _option(
            "Images",
            "--image-prefix",
            metavar="URL",
            help="labelstudio: the address of the images, without their names.",
        ),
    ] = None,
    prepend: Annotated[
        str | None,
        _option("Text files", "--prepend", metavar="TEXT", help="Start each text with this."),
    ] = None,
    append: Annotated[
        str | None,
        _option("Text files", "--append", metavar="TEXT", help="End each text with this."),
    ] = None,
    csv_raw: Annotated[
        bool,
        _option(
            "Text files",
            "--csv-raw",
            help="Write texts unchanged, even if a spreadsheet takes them for formulas.",
        ),
    ] = False,
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
    quiet: Quiet = False,
) -> None:
    from pgcli.results.exports.export_options import BOX_OPTIONS, ExportOptions, find_format

    options = ExportOptions(
        prompt=prompt,
        overwrite=overwrite,
        labels=labels,
        min_score=min_score,
        min_confidence=min_confidence,
        nms=nms,
        store_images=store_images,
        root=root,
        image_prefix=image_prefix,
        prepend=prepend,
        append=append,
        csv_raw=csv_raw or None,
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
    )
    if find_format(to.lower()).is_merged:  # texts have no boxes: only typed options are refused
        origins = {name: context.get_parameter_source(name) for name in BOX_OPTIONS}
        outside: dict[str, Any] = {
            name: None
            for name, origin in origins.items()
            if origin and origin.name != "COMMANDLINE"
        }
        options = replace(options, **outside)
    if code := run_export(results, to, output, options, Screen(quiet=quiet)):
        raise typer.Exit(code)


def run_export(
    results: Sequence[str], to: str, output: str | None, options: ExportOptions, screen: Screen
) -> int:
    """Write the export, and return the exit code. The rows are read twice: first for statistics.

    Raises UsageError, NoInputError, OutputExists and OutputFailed.
    """
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.results.exports.export_entries import ExportEntries
    from pgcli.results.exports.export_options import (
        check_options,
        check_output,
        check_rows,
        find_format,
    )
    from pgcli.results.exports.validate_rows import collect_stats
    from pgcli.results.exports.write_export import report_export, write_export
    from pgcli.results.gallery.run_info import incomplete_note
    from pgcli.results.several_files import SeveralFiles

    to = to.lower()
    format = find_format(to)
    check_options(to, format, options)
    target = check_output(to, format, results, output, overwrite=options.overwrite)
    paths = [Path(name) for name in results]
    notes = [note for note in map(incomplete_note, paths) if note]
    rows = SeveralFiles(paths, options.box_filter, exact=format.keeps_types)
    with screen.progress("reading rows") as progress:
        stats = collect_stats(progress.track(rows), options.prompt)
    check_rows(to, format, ", ".join(results), stats, options)
    wanted, search = options.wanted(format, stats), options.search(RunOnScreen(screen))
    images = ExportEntries(paths, format, wanted, search)
    if not format.is_merged:
        images.check_sources(target)
    with screen.progress("images", stats.images, unit="images") as progress:
        entries = progress.track(images.entries(rows, options.prompt, options.root))
        write_export(format, target, entries, wanted, overwrite=options.overwrite)
    report_export(to, output or "files next to the images", stats, wanted.counts, search)
    for note in notes:
        search.say(f"{note}; the export ends there")
    return INCOMPLETE if wanted.counts.missing.count or wanted.counts.unnamed else 0
