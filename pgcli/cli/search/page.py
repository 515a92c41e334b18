"""The page of a search, with small copies of the images that were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from pgcli.cli.run_command import RunOnScreen
from pgcli.cli.search.output import Rows
from pgcli.cli.ui.console import Screen
from pgcli.records import Item
from pgcli.results.gallery.cards import ImageRef
from pgcli.results.gallery.gallery_page import report_missing, small_copies, title
from pgcli.results.gallery.page import is_page
from pgcli.results.gallery.search_page import FoundCard, Section, render_search_page
from pgcli.results.gallery.thumbnails import ThumbnailEntry, thumbnail_entry
from pgcli.results.image_locator import ImageLocator
from pgcli.results.image_search import ImageSearch
from pgcli.results.missing_images import MissingImages
from pgcli.results.publish import publish
from pgcli.search.vector_files import VectorName
from pgcli.stores import make_reader
from pgcli.wording import count

if TYPE_CHECKING:
    from pgcli.cli.search.search_options import SearchOptions

#: The numbers of images on the page: of rows, and of the files that are queries.
ImageNumbers = Mapping[VectorName | str, int]


def write_page(options: SearchOptions, rows: Rows, summary: str, screen: Screen) -> None:
    """Write the page of the rows. Raises OutputExists and OutputFailed."""
    assert options.view is not None
    target = Path(options.view)
    search = image_search(options, screen)
    items, places = page_items(options, rows, search)
    missing = MissingImages()
    images = thumbnails(items, search, missing, screen)
    files = [Path(name).name for name in options.vectors]
    is_by_query = rows.by == "query"
    page = render_search_page(
        sections(rows, places, len(options.text)),
        images,
        title=title(rows.names) if is_by_query else f"Near-duplicates in {title(files)}",
        summary=summary,
    )
    is_replaced = options.overwrite or is_page(target)
    publishing = publish(target, is_folder=False, overwrite=is_replaced)
    with publishing as part, part.open("w", encoding="utf-8") as file:
        file.writelines(page)
    screen.info(f"{target}: {count(len(images), 'image')}, {decimal(target.stat().st_size)}")
    report_missing(missing, search)


def image_search(options: SearchOptions, screen: Screen) -> ImageSearch:
    """How the images of rows are found."""
    url_reader = make_reader(
        allow_urls=options.allow_urls, allow_private_hosts=options.allow_private_hosts
    )
    return ImageSearch(RunOnScreen(screen), options.images, url_reader)


def page_items(
    options: SearchOptions, rows: Rows, search: ImageSearch
) -> tuple[list[Item], ImageNumbers]:
    """The images of the page: each one once, in the order of the input, then the queries."""
    named = {hit.name for hits in rows.hits for hit in hits if hit.name.image is not None}
    found = sorted(named, key=lambda name: (name.file, name.index, name.id))
    locator = ImageLocator([Path(name) for name in options.vectors], search)
    items = [locator.item(place, image_ref(name)) for place, name in enumerate(found)]
    queries = list(dict.fromkeys(options.image))
    items += [Item(place, name, name, name) for place, name in enumerate(queries, start=len(items))]
    places: dict[VectorName | str, int] = {name: place for place, name in enumerate(found)}
    return items, places | {name: len(found) + place for place, name in enumerate(queries)}


def image_ref(name: VectorName) -> ImageRef:
    """The image of a row, as result files name it."""
    return ImageRef(name.file, name.index, name.id, name.image or "")


def thumbnails(
    items: Sequence[Item], search: ImageSearch, missing: MissingImages, screen: Screen
) -> list[ThumbnailEntry]:
    """A small copy of each image, or why there is none."""
    entries = []
    copied = small_copies(items, len(items), search)
    with closing(copied), screen.progress("images", len(items), unit="images") as progress:
        for image in progress.track(copied):
            if image.fault is not None:
                missing.add(image.item.image, image.fault)
            entries.append(thumbnail_entry(image, is_external=False))
    return entries


def sections(rows: Rows, places: ImageNumbers, num_texts: int) -> list[Section]:
    """The sections of the page: a query with its hits, or a group."""
    found = []
    for number, (name, hits) in enumerate(zip(rows.names, rows.hits, strict=True)):
        cards = [
            FoundCard(hit.name.id, hit.similarity, places.get(hit.name), hit.name.text or "")
            for hit in hits
        ]
        if rows.by == "group":
            found.append(Section(f"Group {name}", cards, f"{len(hits):,} members"))
        else:
            is_image = number >= num_texts
            note = f"{len(hits):,} hit{'s' * (len(hits) != 1)}"
            found.append(Section(name, cards, note, places[name] if is_image else None))
    return found
