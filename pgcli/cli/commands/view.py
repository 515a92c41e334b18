"""view: a page of results with small copies of their images."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pgcli.cli.options import (
    AddressOptions,
    CliCall,
    FileArgs,
    QuietOptions,
    command,
)
from pgcli.cli.ui.console import BAR_DELAY, Screen
from pgcli.declare import same
from pgcli.errors import UsageError
from pgcli.results.options import GalleryOptions, ImageOptions
from pgcli.run.request.options import OutputOptions
from pgcli.run.request.questions import BoxOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions(GalleryOptions):
    """The options of `view`."""

    draw: str | None = same(OutputOptions, "draw", own=True)
    images: str | None = same(ImageOptions, "images")


@command(
    "view",
    "RESULTS are files or folders of rows, even of an unfinished run, or - for JSON lines on "
    "standard input; several are shown side by side. The page needs no network and no server. For "
    "more than 4,000 rows, its images and boxes are in a folder beside it.",
    ViewOptions,
    BoxOptions,
    AddressOptions,
    QuietOptions,
    examples="$ pgcli view captions.jsonl\n$ pgcli view captions.jsonl boxes.jsonl -o gallery.html",
)
def view(results: FileArgs, call: CliCall) -> None:
    if "-" not in results:
        view_files([Path(name) for name in results], call)
        return
    with TemporaryDirectory(prefix="pgcli-") as folder:
        piped = Path(folder) / "rows.jsonl"
        with piped.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        values = {"output": "rows.html", **call.values}
        files = [piped if name == "-" else Path(name) for name in results]
        view_files(files, replace(call, values=values))


def view_files(outputs: list[Path], call: CliCall) -> None:
    """Write the page of result files, and draw the boxes of one."""
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.results.drawings.drawings import draw_rows, draw_target
    from pgcli.results.gallery.gallery_page import RowGroup, write_gallery
    from pgcli.results.images import ImageLocator
    from pgcli.run.progress.events import tracked

    options, box_filter = call.build(ViewOptions), call.build(BoxOptions).box_filter
    screen = Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    on_event = RunOnScreen(screen)

    def make_locator() -> ImageLocator:
        """The locator of the images; its URL reader is closed after a pass through them."""
        return ImageLocator(on_event, options.images, call.build(AddressOptions).url_reader)

    locator = make_locator()
    groups = [
        RowGroup(path, name, box_filter=box_filter)
        for path, name in zip(outputs, unique_names(outputs), strict=True)
    ]
    if options.draw is not None:
        if len(outputs) > 1:
            raise UsageError("--draw draws the rows of one result file", hint="name one of them")
        draw_target(options.draw, overwrite=options.overwrite).check()
    gallery = write_gallery(groups, options, locator)
    if options.draw is not None:
        rows = tracked(groups[0].rows(options.limit), on_event, "drawings", gallery.rows)
        for name, text in draw_rows(rows, outputs[0], options.draw, make_locator(), gallery.labels):
            screen.info(f"{name}: {text}")


def unique_names(outputs: Sequence[Path]) -> list[str]:
    """The name of each file, or its whole path if another file has the same name."""
    names = [output.name for output in outputs]
    return [output.name if names.count(output.name) == 1 else str(output) for output in outputs]
