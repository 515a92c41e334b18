"""Writes the gallery page of result files: thumbnails of images, and settings of runs."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from pgcli.boxes import NO_FILTER, BoxFilter
from pgcli.errors import NoInputError, OutputExists, UsageError
from pgcli.images import ImageError, ImageLimits, load_thumbnail
from pgcli.images.files import item_bytes
from pgcli.images.pool import MIN_ITEMS_FOR_WORKERS, decode_ahead
from pgcli.inputs.options import IMAGE_ENDINGS, ending
from pgcli.output.reader import Row, read_results, read_settings
from pgcli.records import DecodedImage, Item
from pgcli.results.image_locator import ImageLocator, MissingImages, saved_record
from pgcli.results.options import GalleryOptions
from pgcli.results.pages import Cards, ResultFile, page_target, render_page
from pgcli.run.events import tracked
from pgcli.run.status import read_status
from pgcli.stores.files import parse_path
from pgcli.stores.urls import url_scheme
from pgcli.text import byte_count, count, listed, printable

MAX_ROWS = 5_000  # of a page: more of them open slowly
#: The script's files, in the order in which they are concatenated.
SCRIPTS = (
    *("data", "server", "marks", "filters", "matrix", "review", "grid"),
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
    default = outputs[0].with_name(f"{outputs[0].stem}.html")
    name = default if options.output is None else options.output
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
    data = cards.data()
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
    locator.say(f"{target.path}: {count(len(cards.rows), 'row')}, {count(total, 'image')}, {size}")
    if has_more:
        each = "" if len(groups) == 1 else " of each file"
        locator.say(
            f"the page shows the first {limit:,} rows{each}; pgcli view --serve shows all rows of "
            "a file"
        )
    report_missing(missing, locator)
    return Gallery(len(cards.rows), cards.distinct_labels)


def render_gallery(data: Mapping[str, Any], entries: Iterable[str], *, title: str) -> Iterator[str]:
    """The page in pieces, the images last."""
    return render_page(
        "pgcli.results",
        SCRIPTS,
        data,
        title=title,
        parts=((f"image-{number}", entry) for number, entry in enumerate(entries)),
    )


def small_copies(
    items: Iterable[Item], total: int, locator: ImageLocator, maker: ThumbnailMaker
) -> Generator[DecodedImage]:
    """A small copy of each image, by processes on all cores; missing ones need no process."""
    copied: Any = decode_ahead(
        (without_copy(item) if item.fault else item for item in items),
        maker,
        workers=None if total < MIN_ITEMS_FOR_WORKERS else min(os.cpu_count() or 1, 16),
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


#: How WebP is encoded. Method 2 of 6 is twice as fast as Pillow's default of 4, and a few percent
#: larger.
WEBP = {"quality": 82, "method": 2}
#: The longest side of a thumbnail, by the number of images, so that a page of thousands of images
#: still opens in a browser.
SIDES = ((20, 2048), (60, 1024), (400, 640), (3_000, 448))
MIN_SIDE = 320


@dataclass(frozen=True)
class ThumbnailMaker:
    """Makes a thumbnail with sides of at most `side` pixels."""

    side: int
    limits: ImageLimits

    def __call__(self, item: Item) -> DecodedImage:
        """The item's image with the bytes of the encoded thumbnail as its pixels, or its fault."""
        started = perf_counter()
        if item.fault is not None:
            return without_copy(item)
        try:
            data = item_bytes(item, self.limits)
            size, small = load_thumbnail(data, self.side, self.limits)
        except ImageError as problem:
            return DecodedImage(replace(item, data=None), None, None, None, 0.0, problem.fault)
        small.info = {}  # EXIF may hold locations and names, which are not for the page's readers
        file = BytesIO()
        small.save(file, "WEBP", **WEBP)
        pixels = np.frombuffer(file.getvalue(), np.uint8)
        milliseconds = (perf_counter() - started) * 1000
        return DecodedImage(item, size.width, size.height, pixels, milliseconds)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a file's bytes."""
        return (-1,)


def without_copy(item: Item) -> DecodedImage:
    """The result for an item that has a fault."""
    return DecodedImage(item, None, None, None, 0.0, item.fault)


def default_side(count: int) -> int:
    """The default longest side in pixels of the thumbnails of `count` images."""
    return next((side for max_count, side in SIDES if count <= max_count), MIN_SIDE)


def thumbnail_entry(image: DecodedImage) -> str:
    """The page's data of an image as JSON: its thumbnail as base64 and its upright size.

    Without a thumbnail: 0, no size, and the error as a code and a message.
    """
    if image.fault is not None or image.pixels is None:
        fault = image.fault
        assert fault is not None
        return json.dumps([0, None, None, fault.code, printable(fault.message)])
    text = base64.b64encode(image.pixels.tobytes()).decode("ascii")
    return f'["{text}",{image.width},{image.height}]'


#: Settings that a page does not show, as only the program reads them.
PRIVATE_SETTINGS = frozenset({"folder", "checkpoint", "adapter_files"})


def read_run_info(output: Path, name: str, page_folder: Path) -> ResultFile:
    """The result file under this name, with the settings of its run.

    Paths are relative to the folder of the page, which readers get without the writer's folders.
    """
    record = saved_record(output)
    if record is None:
        settings, folder = read_settings(output), None
        facts = [*flatten(settings)]
    else:
        settings, folder = record.settings, record.input.get("folder")
        facts = [*flatten({**settings, **record.model, "versions": record.versions})]
        facts += [("begun", record.begun)] if record.begun else []
    start = folder if isinstance(folder, str) else ""
    facts = [
        (fact, ", ".join(paths_on_page(settings["sources"], page_folder, start)))
        if fact == "sources" and isinstance(settings.get("sources"), list)
        else (fact, path_on_page(value, page_folder))
        for fact, value in facts
    ]
    objects = settings.get("objects")
    labels = tuple(map(str, objects)) if isinstance(objects, list) else ()
    names = ("sources", "image_column", "id_column")
    images: Hashable = json.dumps([settings.get(name) for name in names], default=str)
    return ResultFile(
        name,
        facts,
        labels,
        incomplete_note(output),
        images if settings.get("sources") else (),
        partial(absolute_image, folder),
        output,
    )


def paths_on_page(sources: Sequence[object], page_folder: Path, start: str) -> Iterator[str]:
    """The sources, relative to the page where they are paths, which begin at the folder `start`."""
    for source in map(str, sources):
        is_path = source != "-" and not url_scheme(source)
        yield path_on_page(os.path.join(start, source), page_folder) if is_path else source  # noqa: PTH118


def path_on_page(value: str, page_folder: Path) -> str:
    """The value; an absolute path is relative to the folder of the page."""
    if not os.path.isabs(value):  # noqa: PTH117
        return value
    return os.path.relpath(value, os.path.realpath(page_folder))


def absolute_image(folder: object, image: str) -> str | None:
    """The absolute path or the URL of an image file; None for other names of images."""
    if ending(image) not in IMAGE_ENDINGS:
        return None
    if url_scheme(image):
        return image
    if not isinstance(folder, str):
        return None
    return os.path.normpath(os.path.join(folder, parse_path(image)))  # noqa: PTH118 - may have a NUL


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values as text, without empty values; nested names are prefixed."""
    for name, value in settings.items():
        if name in PRIVATE_SETTINGS or value in (None, [], {}) or value is False:
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name} ")
        elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            for entry in value:
                yield from flatten(entry, f"{prefix}{name} ")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{prefix}{name}".replace("_", " "), "yes" if value is True else text


def incomplete_note(output: Path) -> str:
    """A note on a run that is not complete; empty for a complete or unknown one."""
    try:
        status = read_status(str(output))
    except (UsageError, OutputExists):  # OutputExists: the file is not of the run beside it
        return ""
    owner, own = status.owner, (os.getpid(), socket.gethostname())
    if owner and owner.state == "running" and (owner.pid, owner.host) == own:
        return ""  # of this process, which writes its page once all rows are saved
    of = f" of {status.total:,}" if status.total is not None else ""
    if status.state == "running":
        return f"the run is not finished: {status.rows:,}{of} rows so far"
    return f"the run stopped at {status.rows:,}{of} rows" if status.state == "stopped" else ""
