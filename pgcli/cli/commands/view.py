"""view: a page of results with small copies of their images."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pgcli.cli.options import AddressOptions, Given, Results, command, images_option
from pgcli.cli.ui.console import Screen
from pgcli.declare import opt, same
from pgcli.errors import UsageError
from pgcli.run.request.options import RunningOptions
from pgcli.run.request.questions import BoxOptions

if TYPE_CHECKING:
    from pgcli.results.gallery.gallery_page import Gallery, GalleryOptions

_output = partial(opt, panel="Where to", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """The options of `view`."""

    output: str | None = _output(
        "The page.", metavar="FILE", short=("-o",), default_text="RESULTS.html"
    )
    assets: str | None = _output(
        "Put the images in a folder next to the page, if there are many.", metavar="DIR"
    )
    overwrite: bool = _output("Replace a file that is not a page of pgcli.", default=False)
    size: int | None = _output(
        "Longest side of the images.",
        min=16,
        max=4096,
        default_text="1024 to 320, by their number",
    )
    draw: str | None = _output(
        "Also draw boxes and masks on copies of the images in full size.", metavar="DIR"
    )
    images: str | None = images_option(
        "Search the images that rows name in this folder only.", short=("--root",)
    )
    limit: int | None = opt(
        "Only the first N rows of each file.", panel="Which images", own=True, min=1
    )
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "view",
    "RESULTS are files or folders of rows, also of a run that is not finished, or - for JSON lines "
    "on standard input; several are shown side by side. The page contains everything and needs no "
    "network and no server.",
    ViewOptions,
    BoxOptions,
    AddressOptions,
    examples="$ pgcli view captions.jsonl\n$ pgcli view captions.jsonl boxes.jsonl -o gallery.html",
)
def view(results: Results, given: Given) -> None:
    if "-" not in results:
        view_files([Path(name) for name in results], given)
        return
    with TemporaryDirectory(prefix="pgcli-") as folder:
        piped = Path(folder) / "rows.jsonl"
        with piped.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        values = {"output": "rows.html", **given.values}
        files = [piped if name == "-" else Path(name) for name in results]
        view_files(files, replace(given, values=values))


def view_files(outputs: list[Path], given: Given) -> None:
    """Write the page of result files."""
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.results.gallery.gallery_page import GalleryOptions, RowGroup, write_gallery

    options = given.build(GalleryOptions, box_filter=given.build(BoxOptions).box_filter)
    draw, overwrite = given.values.get("draw"), options.overwrite
    screen = Screen(quiet=given.quiet)
    names = unique_names(outputs)
    groups = [RowGroup(path, name) for path, name in zip(outputs, names, strict=True)]
    if draw is not None:
        from pgcli.results.drawings.drawings import check_draw

        if len(outputs) > 1:
            raise UsageError("--draw draws the rows of one result file", hint="name one of them")
        check_draw(draw, overwrite=overwrite)
    gallery = write_gallery(groups, options, RunOnScreen(screen))
    if draw is not None:
        draw_boxes(outputs[0], draw, gallery, options, screen)


def draw_boxes(
    output: Path, folder: str, gallery: Gallery, options: GalleryOptions, screen: Screen
) -> None:
    """Draw the boxes and masks of the gallery's rows on copies of their images in full size."""
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.output.reader import read_results
    from pgcli.results.drawings.drawings import Drawings, drawable_answer

    locator = options.locator(RunOnScreen(screen))
    rows = map(options.box_filter.row, islice(read_results(output), options.limit))
    drawings = Drawings(folder, labels=gallery.labels, reader=locator.url_reader)
    with screen.progress("drawings", gallery.rows, unit="drawings") as progress:
        try:
            for row, item in locator.with_items(progress.track(rows), output):
                drawings.on_row(drawable_answer(row, str(output)), item, is_saved=False)
        except BaseException:
            drawings.finish(complete=False)
            raise
        facts = drawings.finish(complete=True)
    for name, text in facts:
        screen.info(f"{name}: {text}")


def unique_names(outputs: Sequence[Path]) -> list[str]:
    """The name of each file, or its whole path if another file has the same name."""
    names = [output.name for output in outputs]
    return [output.name if names.count(output.name) == 1 else str(output) for output in outputs]
