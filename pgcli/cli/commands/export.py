"""export: the rows of a result file in the format of another tool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import typer

from pgcli.cli.exit_codes import INCOMPLETE
from pgcli.cli.options import AddressOptions, Given, Results, command
from pgcli.cli.ui.console import Screen
from pgcli.declare import REQUIRED, opt, same
from pgcli.results.exports import FORMATS
from pgcli.run.request.options import RunningOptions
from pgcli.run.request.questions import BoxOptions

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
        "Search the images in this folder only; coco, labelstudio: write paths relative to it.",
        metavar="DIR",
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
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.results.exports.export import export as write_export
    from pgcli.results.exports.export_options import BOX_OPTIONS, ExportOptions, find_format

    to, output = given.values["to"].lower(), given.values.get("output")
    unset = {"csv_raw": given.values.get("csv_raw") or None}
    if find_format(to).is_merged:  # texts have no boxes: only typed options are refused
        unset |= {name: None for name in BOX_OPTIONS if name not in given.typed}
    options = given.build(ExportOptions, **unset)
    counts = write_export(results, to, output, options, RunOnScreen(Screen(quiet=given.quiet)))
    if counts.missing.count or counts.unnamed:
        raise typer.Exit(INCOMPLETE)
