"""Writes the gallery page of result files, with small copies of their images."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pgcli.boxes import NO_FILTER, BoxFilter
from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageLimits
from pgcli.images.pool import MIN_ITEMS_FOR_WORKERS, decode_ahead
from pgcli.output.reader import Row, read_results
from pgcli.records import DecodedImage, Item
from pgcli.results.cards import Cards
from pgcli.results.image_locator import ImageLocator, MissingImages
from pgcli.results.options import GalleryOptions
from pgcli.results.pages import page_target, render_page
from pgcli.results.run_info import path_on_page, read_run_info
from pgcli.results.thumbnails import (
    IMAGES_PER_PART,
    ThumbnailMaker,
    default_side,
    image_parts,
    thumbnail_entry,
    without_copy,
)
from pgcli.run.progress.events import tracked
from pgcli.text import byte_count, count, listed

MAX_ROWS = 5_000  # of a page: more of them open slowly
#: The script's files, in the order in which they are concatenated.
SCRIPTS = (
    *("data", "marks", "filters", "matrix", "review", "grid"),
    *("view", "zoom", "drawing", "runs", "evaluation", "start"),
)


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

    def rows(self, limit: int | None) -> Generator[Row]:
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
    outputs = [group.output for group in groups]
    name = default_page(outputs[0]) if options.output is None else options.output
    target = page_target(name, options.option, inputs=outputs, overwrite=options.overwrite)
    target.check()
    cards, parent, limit = Cards(), target.path.parent, MAX_ROWS // len(groups)
    has_more = False
    for group in groups:
        info = read_run_info(group.output, path_on_page(group.name, parent), parent)
        with closing(group.rows(options.limit)) as rows:
            cards.add(replace(info, output_of=group.output_of), islice(rows, limit))
            has_more |= next(rows, None) is not None
    if not cards.rows:
        raise NoInputError(f"no rows in {', '.join(map(str, outputs))} yet", hint="try again later")
    total, missing = len(cards.images), MissingImages()
    maker = ThumbnailMaker(options.size or default_side(total), ImageLimits())
    copied = small_copies(locator.items(cards.images), total, locator, maker)
    tracking = tracked(copied, locator.on_event, "images", total, unit="images")
    data = cards.data() | {"chunkSize": IMAGES_PER_PART}
    if evaluation is not None:
        files = [
            file | {"name": path_on_page(file["name"], parent)} for file in evaluation["files"]
        ]
        data |= {"evaluation": {**evaluation, "files": files}}
    names = [path_on_page(group.name, parent) for group in groups]
    title = listed(names) if len(names) > 1 else names[0]
    with closing(copied), closing(tracking):
        pieces = render_gallery(data, page_entries(tracking, missing), title=title)
        with target.publish() as part, part.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
    size = byte_count(target.path.stat().st_size)
    locator.say(f"{target.path}: {count(cards.rows, 'row')}, {count(total, 'image')}, {size}")
    if has_more:
        each = "" if len(groups) == 1 else " of each file"
        locator.say(
            f"the page shows the first {limit:,} rows{each}; to see others, filter the rows with "
            "grep, sort or tail and pipe them into pgcli view -"
        )
    report_missing(missing, locator)
    return Gallery(cards.rows, cards.distinct_labels)


def render_gallery(data: Mapping[str, Any], entries: Iterable[str], *, title: str) -> Iterator[str]:
    """The page in pieces, the images last."""
    return render_page(
        "pgcli.results",
        SCRIPTS,
        data,
        title=title,
        parts=image_parts(entries),
    )


def small_copies(
    items: Iterable[Item], total: int, locator: ImageLocator, maker: ThumbnailMaker
) -> Generator[DecodedImage]:
    """A small copy of each image, by processes on all cores; missing ones need no process."""
    copied: Any = decode_ahead(
        (without_copy(item) if item.fault else item for item in items),
        maker,
        workers=worker_count(total),
        # images at URLs may be anybody's and are always decoded in another process
        total=None if locator.url_reader else total,
        reader=locator.url_reader,
    )
    with closing(copied):
        yield from copied


def page_entries(images: Iterator[DecodedImage], missing: MissingImages) -> Iterator[str]:
    """The page's entry of each image."""
    for image in images:
        if image.fault is not None:
            missing.add(image.item.image or image.item.id, image.fault)
        yield thumbnail_entry(image)


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


def worker_count(total: int) -> int | None:
    """One process for each core; None for few images, which need no other process."""
    return None if total < MIN_ITEMS_FOR_WORKERS else min(os.cpu_count() or 1, 16)
