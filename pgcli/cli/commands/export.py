"""export: the rows of a result file in the format of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from pgcli.cli.exit_codes import INCOMPLETE
from pgcli.cli.options import AddressOptions, Given, Results, command
from pgcli.cli.ui.console import Screen
from pgcli.declare import REQUIRED, opt, same
from pgcli.results.exports import FORMATS
from pgcli.run.request.options import RunningOptions
from pgcli.run.request.questions import BoxOptions

if TYPE_CHECKING:
    from pgcli.results.exports.export_options import ExportOptions

_output = partial(opt, panel="Where to", own=True)
_images = partial(opt, panel="Images", own=True)
_texts = partial(opt, panel="Text files", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredExport:
    """The options of `export`; unset ones are None in `ExportOptions`, or false."""

    to: str = _output(
        ", ".join(FORMATS) + ".", default=REQUIRED, metavar="FORMAT", choices=lambda: [*FORMATS]
    )
    output: str | None = _output(
        "The file or folder to write; txt and caption default to the images' folders.",
        metavar="PATH",
        short=("-o",),
    )
    overwrite: bool = _output("Replace an earlier export.", default=False)
    prompt: str | None = opt(
        "Only the rows of this prompt.", panel="Rows", own=True, metavar="TEXT"
    )
    labels: str | None = opt(
        "The labels in order, or a file with one on each line.",
        panel="Boxes",
        own=True,
        metavar="A,B|FILE",
        default_text="all, sorted",
    )
    store_images: Literal["link", "copy", "none"] | None = _images(
        "yolo, imagefolder, fiftyone: link or copy the images into the folder, or none; an image "
        "that is not a file is copied.",
        default_text="link",
    )
    root: str | None = _images(
        "coco, labelstudio: write image paths relative to this folder.", metavar="DIR"
    )
    image_prefix: str | None = _images(
        "labelstudio: the address of the images, without their names.", metavar="URL"
    )
    prepend: str | None = _texts("Start each text with this.", metavar="TEXT")
    append: str | None = _texts("End each text with this.", metavar="TEXT")
    csv_raw: bool = _texts(
        "Write texts unchanged, even if a spreadsheet takes them for formulas.", default=False
    )
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "export",
    "RESULTS are JSON lines or Parquet files, or folders of Parquet files, that answering commands "
    "wrote; images that several have are combined. Rows with errors are left out.",
    DeclaredExport,
    BoxOptions,
    AddressOptions,
    examples="$ pgcli export boxes.jsonl --to coco -o boxes.json\n"
    "$ pgcli export captions.jsonl --to txt",
)
def export(results: Results, given: Given) -> None:
    from pgcli.results.exports.export_options import BOX_OPTIONS, ExportOptions, find_format

    to, output = given.values["to"].lower(), given.values.get("output")
    unset = {"csv_raw": given.values.get("csv_raw") or None}
    if find_format(to).is_merged:  # texts have no boxes: only typed options are refused
        unset |= {name: None for name in BOX_OPTIONS if name not in given.typed}
    options = given.build(ExportOptions, **unset)
    if code := run_export(results, to, output, options, Screen(quiet=given.quiet)):
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
    from pgcli.results.exports.rows import SeveralFiles, collect_stats
    from pgcli.results.exports.write_export import report_export, write_export
    from pgcli.results.gallery.run_info import incomplete_note

    format = find_format(to)
    check_options(to, format, options)
    target = check_output(to, format, results, output, overwrite=options.overwrite)
    paths = [Path(name) for name in results]
    notes = [note for note in map(incomplete_note, paths) if note]
    rows = SeveralFiles(paths, options.box_filter, exact=format.keeps_types)
    with screen.progress("reading rows") as progress:
        stats = collect_stats(progress.track(rows), options.prompt)
    check_rows(to, format, ", ".join(results), stats, options)
    wanted, locator = options.wanted(format, stats), options.locator(RunOnScreen(screen))
    images = ExportEntries(paths, format, wanted, locator)
    if not format.is_merged:
        images.check_sources(target)
    with screen.progress("images", stats.images, unit="images") as progress:
        entries = progress.track(images.entries(rows, options.prompt, options.root))
        write_export(format, target, entries, wanted, overwrite=options.overwrite)
    report_export(to, output or "files next to the images", stats, wanted.counts, locator)
    for note in notes:
        locator.say(f"{note}; the export ends there")
    return INCOMPLETE if wanted.counts.missing.count or wanted.counts.unnamed else 0
