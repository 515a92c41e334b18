"""view: a page of results, made of their rows and of small copies of their pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.filesize import decimal

from pgcli.cli.result_files.image_locator import ImageSearch, Reopen, Report, locate_images
from pgcli.cli.result_files.publish import check_target, publish
from pgcli.cli.result_files.run_info import read_run_info
from pgcli.cli.ui.console import Screen
from pgcli.errors import NoInputError, OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.records import DecodedImage
from pgcli.remote import make_url_reader
from pgcli.sinks.reader import Row, read_results
from pgcli.state.write_errors import already_exists, wrap_write_errors
from pgcli.views.gallery.cards import Cards
from pgcli.views.gallery.page import render_page
from pgcli.views.gallery.thumbnails import (
    ThumbnailEntry,
    ThumbnailMaker,
    default_side,
    thumbnail_entry,
    thumbnail_path,
)
from pgcli.views.missing_images import MissingImages
from pgcli.views.output_folder import write_below
from pgcli.workers import MIN_ITEMS_FOR_WORKERS, prefetch

LARGE_PAGE = 300 * 2**20  # bytes of a page that browsers open slowly
MAX_NAMES_IN_TITLE = 3  # parts that a title names


@dataclass(frozen=True)
class GalleryOptions:
    """Where the page goes, where its pictures come from and go to, and how much there is to be.

    `again` opens what the run read, where no record beside the rows says what that was.
    """

    output: str | None
    assets: str | None = None
    images: str | None = None
    limit: int | None = None
    side: int | None = None
    draw: str | None = None
    overwrite: bool = False
    allow_urls: bool = False
    allow_private_hosts: bool = False
    again: Reopen | None = None

    def search(self, tell: Report) -> ImageSearch:
        """How pictures are looked for; each with its own way to addresses, which ends with it."""
        url_reader = make_url_reader(
            allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts
        )
        return ImageSearch(tell, self.images, url_reader, self.again)


@dataclass(frozen=True)
class RowGroup:
    """Rows that stand beside others under a name: of a result file, or of one prompt in it."""

    output: Path
    called: str
    prompt: str | None = None

    def rows(self, limit: int | None) -> Iterator[Row]:
        """The rows, the first ones up to a limit."""
        found = read_results(self.output)
        if self.prompt is not None:
            found = (row for row in found if row["prompt"] == self.prompt)
        return islice(found, limit)


def view(names: Sequence[str], asked: GalleryOptions, *, quiet: bool) -> None:
    """Make the page of result files, and draw their rows where that is asked.

    Raises UsageError, NoInputError, OutputExists and OutputFailed.
    """
    screen = Screen(quiet=quiet)
    outputs = [Path(name) for name in names]
    parts = [RowGroup(*one) for one in zip(outputs, unique_names(outputs), strict=True)]
    show(parts, asked, screen)
    if asked.draw is not None:
        draw(outputs[0], asked, screen)


def show(parts: Sequence[RowGroup], asked: GalleryOptions, screen: Screen) -> None:
    """Make the page of rows that stand beside each other. Raises what `view` does."""
    outputs = [part.output for part in parts]
    target = Path(asked.output) if asked.output is not None else default_page(outputs[0])
    check(target, outputs, asked)
    cards = Cards()
    with screen.status("reading rows"):
        for part in parts:
            cards.add(read_run_info(part.output, part.called), part.rows(asked.limit))
    if not cards.rows:
        raise NoInputError(
            f"no rows in {', '.join(map(str, outputs))} yet", hint="try again in a while"
        )
    by = "file" if parts[0].prompt is None else "prompt"
    about = {"assets": relative_address(target, asked.assets), "by": by}
    search, total = asked.search(screen.info), len(cards.images)
    looked: Any = prefetch(
        locate_images(cards.images, outputs, search),
        ThumbnailMaker(asked.side or default_side(total), ImageLimits()),
        workers=workers(total),
        # what anybody may have put at an address is decoded apart, however little it is
        total=None if search.url_reader else total,
        fetcher=search.url_reader,
    )
    missing, progress = MissingImages(), screen.progress("images", total, unit="images")
    whole = publish(target, is_folder=False, overwrite=asked.overwrite)
    with closing(looked) as pictures, whole as made, made.open("w", encoding="utf-8") as file:
        entries = copies(progress.track(pictures), asked.assets, missing)
        names = [one.called for one in parts]
        file.writelines(render_page(cards.data() | about, entries, title=title(names)))
    report(target, cards, missing, search)


def draw(output: Path, asked: GalleryOptions, screen: Screen) -> None:
    """Paint the rows' boxes and masks on copies of their pictures in full size."""
    from pgcli.cli.job.draw.painter import DrawHook
    from pgcli.cli.job.draw.redraw import draw_rows

    labels, search = read_run_info(output, output.name).labels, asked.search(screen.info)
    with DrawHook(
        str(asked.draw), asked=labels, url_reader=search.url_reader, tell=screen.info
    ) as drawing:
        rows = list(islice(read_results(output), asked.limit))
        progress = screen.progress("drawings", len(rows), unit="drawings")
        draw_rows(output, progress.track(rows), drawing, search)
    screen.info(f"drawn: {drawing.told()}")


def check(target: Path, outputs: Sequence[Path], asked: GalleryOptions) -> None:
    """Refuse what cannot or must not be written to, before anything is read."""
    if str(target) == "-":
        raise UsageError("a page does not go to standard output", hint="name a file with -o")
    if any(os.path.realpath(target) == os.path.realpath(output) for output in outputs):
        raise UsageError(f"{target} is a result file itself", hint="name a page: -o gallery.html")
    check_target(target, is_folder=False, overwrite=asked.overwrite)
    if asked.images is not None and not Path(asked.images).is_dir():
        raise UsageError(f"{asked.images} is no folder", hint="name the pictures' folder")
    if asked.draw is not None:
        check_draw(asked.draw, outputs, overwrite=asked.overwrite)
    if asked.assets is not None:
        check_assets(Path(asked.assets), overwrite=asked.overwrite)


def check_draw(folder: str, outputs: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse a folder that cannot be drawn into."""
    from pgcli.cli.job.draw.option import check_folder

    if len(outputs) > 1:
        raise UsageError("--draw draws the rows of one result file", hint="name one of them")
    check_folder(folder, overwrite=overwrite)


def check_assets(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be one, or has something in it that is not to be replaced."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", hint="name a folder: --assets gallery")
    if not folder.parent.is_dir():
        raise UsageError(f"there is no folder {folder.parent}", hint="make it first")
    with wrap_write_errors(folder):
        if folder.is_dir() and any(folder.iterdir()) and not overwrite:
            raise already_exists(folder)
        folder.mkdir(exist_ok=True)


def copies(
    pictures: Iterator[DecodedImage], assets: str | None, missing: MissingImages
) -> Iterator[ThumbnailEntry]:
    """What the page holds of each picture, those for the folder beside it written there."""
    for number, picture in enumerate(pictures):
        if picture.fault is not None:
            missing.add(picture.item.image, picture.fault)
        elif assets is not None and picture.pixels is not None:
            try:
                write_below(assets, thumbnail_path(number), picture.pixels.tobytes(), token="view")
            except OutputFailed as problem:
                raise OutputFailed(str(problem), hint="make room or mend the place") from problem
        yield thumbnail_entry(picture, is_external=assets is not None)


def report(target: Path, cards: Cards, missing: MissingImages, search: ImageSearch) -> None:
    """Say what was made, what is not in it, and what would be better."""
    size = target.stat().st_size
    search.tell(
        f"{target}: {len(cards.rows):,} rows, {len(cards.images):,} pictures, {decimal(size)}"
    )
    if missing.count:
        search.tell(
            f"{missing.count:,} picture{'s are' if missing.count > 1 else ' is'} not shown"
            f"{', the first is' if missing.count > 1 else ':'} {missing.first}",
            hint=search.hint(missing, "--images DIR finds those that were moved"),
        )
    if size > LARGE_PAGE:
        search.tell(
            "browsers open so large a page slowly",
            hint="--assets DIR puts pictures beside it, --size PX and --limit N make it smaller",
        )


def default_page(output: Path) -> Path:
    """The page's name where none was given: the result file's, with another ending."""
    return output.with_suffix(".html") if output.suffix else output.with_name(f"{output.name}.html")


def relative_address(target: Path, assets: str | None) -> str | None:
    """The folder of copies as the page names it: relative, so that both can be moved together."""
    if assets is None:
        return None
    relative = os.path.relpath(os.path.realpath(assets), os.path.realpath(target.parent))
    return "./" + quote(os.fsencode(relative)) + "/"


def unique_names(outputs: Sequence[Path]) -> list[str]:
    """A short name for each file that no other has: its own, or its whole path."""
    names = [output.name for output in outputs]
    return [output.name if names.count(output.name) == 1 else str(output) for output in outputs]


def title(names: Sequence[str]) -> str:
    """The page's title."""
    more = f" and {len(names) - MAX_NAMES_IN_TITLE} more" if len(names) > MAX_NAMES_IN_TITLE else ""
    return ", ".join(names[:MAX_NAMES_IN_TITLE]) + more


def workers(total: int) -> int | None:
    """How many processes copy pictures: one a core; few pictures need none."""
    return None if total < MIN_ITEMS_FOR_WORKERS else min(os.cpu_count() or 1, 16)
