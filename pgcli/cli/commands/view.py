"""view: a page of results with small copies of their images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli.cli.options import number_option, option
from pgcli.cli.shared_options import (
    AllowPrivateHosts,
    AllowUrls,
    MinConfidence,
    MinScore,
    Nms,
    Quiet,
    images_option,
)
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError

if TYPE_CHECKING:
    from pgcli.results.gallery.gallery_page import Gallery, GalleryOptions

_option = partial(option, own=True)
_number = partial(number_option, own=True)


@command(
    "view",
    "RESULTS are files or folders of rows, also of a run that is not finished; several are shown "
    "side by side. The page contains everything and needs no network and no server.",
    epilog="$ pgcli view captions.jsonl\n$ pgcli view captions.jsonl boxes.jsonl -o gallery.html",
)
def view(
    results: Annotated[list[str], typer.Argument(metavar="RESULTS", hidden=True)],
    output: Annotated[
        str | None,
        _option(
            "Output", "--output", "-o", metavar="FILE", default="RESULTS.html", help="The page."
        ),
    ] = None,
    assets: Annotated[
        str | None,
        _option(
            "Output",
            "--assets",
            metavar="DIR",
            help="Put the images in a folder next to the page, if there are many.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, _option("Output", "--overwrite", help="Replace a file that is not a page of pgcli.")
    ] = False,
    images: Annotated[
        str | None,
        images_option("Search the images that rows name in this folder only."),
    ] = None,
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
    limit: Annotated[
        int | None,
        _number("Input", "--limit", least=1, help="Only the first N rows of each file."),
    ] = None,
    size: Annotated[
        int | None,
        _number(
            "Output",
            "--size",
            least=16,
            most=4096,
            default="1024 to 320, by their number",
            help="Longest side of the images.",
        ),
    ] = None,
    draw: Annotated[
        str | None,
        _option(
            "Output",
            "--draw",
            metavar="DIR",
            help="Also draw boxes and masks on copies of the images in full size.",
        ),
    ] = None,
    min_score: MinScore = None,
    min_confidence: MinConfidence = None,
    nms: Nms = None,
    quiet: Quiet = False,
) -> None:
    from pgcli.box_filter import BoxFilter
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.cli.search.view_found import view_found
    from pgcli.results.gallery.gallery_page import GalleryOptions, RowGroup, write_gallery

    options = GalleryOptions(
        output=output,
        assets=assets,
        images=images,
        limit=limit,
        size=size,
        overwrite=overwrite,
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
        box_filter=BoxFilter(min_score, min_confidence, nms),
    )
    screen = Screen(quiet=quiet)
    outputs = [Path(name) for name in results]
    if len(outputs) == 1 and view_found(outputs[0], options, screen, draws=draw is not None):
        return
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
    from pgcli.results.image_locator import ImageLocator, with_items

    search = options.search(RunOnScreen(screen))
    rows = map(options.box_filter.row, islice(read_results(output), options.limit))
    drawings = Drawings(folder, labels=gallery.labels, reader=search.url_reader)
    with screen.progress("drawings", gallery.rows, unit="drawings") as progress:
        try:
            for row, item in with_items(progress.track(rows), ImageLocator([output], search)):
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
