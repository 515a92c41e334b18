"""Writes the gallery page of result files, with small copies of their images."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pgcli.box_filter import NO_FILTER, BoxFilter
from pgcli.errors import NoInputError, OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.images.pool import MIN_ITEMS_FOR_WORKERS, decode_ahead
from pgcli.output.reader import Row, read_results
from pgcli.pipeline.progress.events import tracked
from pgcli.records import DecodedImage, Item
from pgcli.results.files_below import write_below
from pgcli.results.gallery.cards import Cards
from pgcli.results.gallery.run_info import read_run_info
from pgcli.results.gallery.thumbnails import (
    ThumbnailEntry,
    ThumbnailMaker,
    default_side,
    thumbnail_entry,
    thumbnail_path,
)
from pgcli.results.images import ImageLocator, MissingImages
from pgcli.results.options import GalleryOptions
from pgcli.results.pages.page import page_target, render_page
from pgcli.stores.target import Target
from pgcli.wording import byte_count, count, listed

#: The script's files, in the order in which they are concatenated.
SCRIPTS = "data marks filters matrix review grid zoom drawing runs evaluation start".split()
CHUNK_SIZE = 24  # images in one JSON element, so that a screen needs few of them
LARGE_PAGE = 300 * 2**20  # bytes of a page that browsers open slowly


@dataclass(frozen=True)
class RowGroup:
    """The rows of a result file, or `chosen` ones of it, under a name.

    They have the boxes that `box_filter` keeps. `output_of` returns the output that has the image
    of a row in its input, if not all have one.
    """

    output: Path
    name: str
    chosen: Sequence[Row] | None = None
    box_filter: BoxFilter = NO_FILTER
    output_of: Callable[[Row], Path] | None = None

    def rows(self, limit: int | None) -> Iterator[Row]:
        """The rows, at most `limit`. Raises UsageError for rows of texts."""
        rows = read_results(self.output, hits=True) if self.chosen is None else self.chosen
        for row in islice(rows, limit):
            if "image" not in row:
                raise UsageError(
                    f"{self.output} has embeddings of texts, and a page shows images",
                    hint="pgcli search VECTORS --text TEXT --view PAGE shows the images of a text",
                )
            yield self.box_filter.row(row)


class Gallery(NamedTuple):
    """What a page shows: the number of its rows, and labels that differ in their colours."""

    rows: int
    labels: tuple[str, ...]


def write_gallery(
    groups: Sequence[RowGroup],
    options: GalleryOptions,
    locator: ImageLocator,
    evaluation: Mapping[str, Any] | None = None,
) -> Gallery:
    """Write the page of the groups, side by side, below the metrics of an evaluation if given.

    Raises UsageError, NoInputError, OutputExists and OutputFailed.
    """
    on_event = locator.on_event
    outputs = [group.output for group in groups]
    name = default_page(outputs[0]) if options.output is None else options.output
    target = page_target(name, options.option, inputs=outputs, overwrite=options.overwrite)
    target.check()
    if options.assets is not None:
        overwrite = options.overwrite
        folder = Target(name=options.assets, kind="folder", option="--assets", overwrite=overwrite)
        folder.check()
        with folder.publish():
            pass
    cards = Cards()
    for group in tracked(groups, on_event, "reading rows"):
        info = replace(read_run_info(group.output, group.name), output_of=group.output_of)
        cards.add(info, group.rows(options.limit))
    if not cards.rows:
        raise NoInputError(f"no rows in {', '.join(map(str, outputs))} yet", hint="try again later")
    settings: dict[str, Any] = {"assets": relative_address(target.path, options.assets)}
    settings |= {} if evaluation is None else {"evaluation": evaluation}
    total = len(cards.images)
    copied = small_copies(locator.items(cards.images), total, locator, size=options.size)
    missing, tracking = MissingImages(), tracked(copied, on_event, "images", total, unit="images")
    with (
        closing(copied),
        closing(tracking),
        target.publish() as part,
        part.open("w", encoding="utf-8") as file,
    ):
        entries = page_entries(tracking, options.assets, missing)
        title = listed([group.name for group in groups])
        file.writelines(render_gallery(cards.data() | settings, entries, title=title))
    report_page(target.path, cards, missing, locator)
    return Gallery(len(cards.rows), cards.distinct_labels)


def render_gallery(
    data: dict[str, Any], images: Iterable[ThumbnailEntry], *, title: str
) -> Iterator[str]:
    """The page in pieces, the images last."""
    remaining = iter(images)
    return render_page(
        "pgcli.results.gallery",
        SCRIPTS,
        data | {"chunkSize": CHUNK_SIZE},
        title=title,
        has_assets=data.get("assets") is not None,
        chunks=iter(lambda: list(islice(remaining, CHUNK_SIZE)), []),
    )


def small_copies(
    items: Iterable[Item], total: int, locator: ImageLocator, *, size: int | None = None
) -> Generator[DecodedImage]:
    """A small copy of each image, by default in a size that follows from their number."""
    copied: Any = decode_ahead(
        items,
        ThumbnailMaker(size or default_side(total), ImageLimits()),
        workers=worker_count(total),
        # images at addresses may be anybody's and are always decoded in another process
        total=None if locator.url_reader else total,
        reader=locator.url_reader,
    )
    with closing(copied):
        yield from copied


def page_entries(
    images: Iterator[DecodedImage], assets: str | None, missing: MissingImages
) -> Iterator[ThumbnailEntry]:
    """The page's entry of each image; with `assets`, its copy is written into that folder."""
    for number, image in enumerate(images):
        if image.fault is not None:
            missing.add(image.item.image, image.fault)
        elif assets is not None and image.pixels is not None:
            try:
                write_below(assets, thumbnail_path(number), image.pixels.tobytes(), token="view")
            except OutputFailed as problem:
                hint = "free some space or check the permissions"
                raise OutputFailed(str(problem), hint=hint) from problem
        yield thumbnail_entry(image, is_external=assets is not None)


def report_page(target: Path, cards: Cards, missing: MissingImages, locator: ImageLocator) -> None:
    """Report the page, the images that it lacks, and how to make a large page smaller."""
    size = target.stat().st_size
    rows, images = count(len(cards.rows), "row"), count(len(cards.images), "image")
    locator.say(f"{target}: {rows}, {images}, {byte_count(size)}")
    report_missing(missing, locator)
    if size > LARGE_PAGE:
        locator.say(
            "browsers open such a large page slowly",
            hint="--assets DIR puts the images in a folder, --size PX and --limit N make it "
            "smaller",
        )


def report_missing(missing: MissingImages, locator: ImageLocator) -> None:
    """Report the images that a page lacks, and the options that would find them."""
    if missing.count:
        locator.say(
            f"{missing.count:,} image{'s are' if missing.count > 1 else ' is'} not shown"
            f"{', the first is' if missing.count > 1 else ':'} {missing.first}",
            hint=locator.hint(missing, "--images DIR finds those that were moved"),
        )


def default_page(output: Path) -> Path:
    """The name of the result file with the ending .html."""
    return output.with_suffix(".html") if output.suffix else output.with_name(f"{output.name}.html")


def relative_address(target: Path, assets: str | None) -> str | None:
    """The folder of copies relative to the page, so that both can be moved together."""
    if assets is None:
        return None
    relative = os.path.relpath(os.path.realpath(assets), os.path.realpath(target.parent))
    return "./" + quote(os.fsencode(relative)) + "/"


def worker_count(total: int) -> int | None:
    """One process for each core; None for few images, which need no other process."""
    return None if total < MIN_ITEMS_FOR_WORKERS else min(os.cpu_count() or 1, 16)
