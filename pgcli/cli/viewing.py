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

from pgcli.cli.counting import counted
from pgcli.cli.described import described
from pgcli.cli.located import located
from pgcli.cli.publishing import check_free, published
from pgcli.cli.screen import Screen
from pgcli.errors import NoInputError, OutputFailed, UsageError
from pgcli.images import Limits
from pgcli.records import Picture
from pgcli.sinks.reading import results
from pgcli.state.writing import exists, writing
from pgcli.views.folder import write_below
from pgcli.views.gallery.cards import Cards
from pgcli.views.gallery.page import page
from pgcli.views.gallery.pictures import Copying, Entry, entry, file_name, side_for
from pgcli.workers import FEW_PICTURES, look_ahead

HEAVY = 300 * 2**20  # bytes of a page that browsers open slowly
NAMED = 3  # result files that a title names


@dataclass(frozen=True)
class Asked:
    """Where the page goes, where its pictures come from and go to, and how much there is to be."""

    output: str | None
    assets: str | None
    images: str | None
    limit: int | None
    side: int | None
    draw: str | None = None
    overwrite: bool = False


def view(names: Sequence[str], asked: Asked, *, quiet: bool) -> None:
    """Make the page of result files.

    Raises UsageError, NoInputError, OutputExists and OutputFailed.
    """
    screen = Screen(quiet=quiet)
    outputs = [Path(name) for name in names]
    target = Path(asked.output) if asked.output is not None else beside(outputs[0])
    check(target, outputs, asked)
    cards = Cards()
    with screen.waiting("reading rows"):
        for output, called in zip(outputs, apart(outputs), strict=True):
            cards.add(described(output, called), islice(results(output), asked.limit))
    if not cards.rows:
        raise NoInputError(f"no rows in {', '.join(names)} yet", hint="try again in a while")
    data = cards.data() | {"beside": address(target, asked.assets)}
    side = asked.side or side_for(len(cards.wanted))
    items = located(cards.wanted, outputs, asked.images, screen.say)
    total = len(cards.wanted)
    looked: Any = look_ahead(items, Copying(side, Limits()), workers=workers(total), total=total)
    missing = Missing()
    whole = published(target, is_folder=False, overwrite=asked.overwrite)
    with closing(looked) as pictures, whole as part, part.open("w", encoding="utf-8") as file:
        entries = copies(counted(pictures, total, screen), asked.assets, missing)
        file.writelines(page(data, entries, title=title(names)))
    report(target, cards, missing, screen)
    if asked.draw is not None:
        draw(outputs[0], asked, screen)


def draw(output: Path, asked: Asked, screen: Screen) -> None:
    """Paint the rows' boxes and masks on copies of their pictures in full size."""
    from pgcli.cli.drawing.afterwards import draw_rows
    from pgcli.cli.drawing.painter import Drawing

    labels = described(output, output.name).asked
    with Drawing(str(asked.draw), asked=labels, tell=screen.say) as drawing:
        rows = list(islice(results(output), asked.limit))
        told = counted(rows, len(rows), screen, "drawings")
        draw_rows(output, told, drawing, asked.images, screen.say)
    screen.say(f"drawn: {drawing.told()}")


def check(target: Path, outputs: Sequence[Path], asked: Asked) -> None:
    """Refuse what cannot or must not be written to, before anything is read."""
    if str(target) == "-":
        raise UsageError("a page does not go to standard output", hint="name a file with -o")
    if any(os.path.realpath(target) == os.path.realpath(output) for output in outputs):
        raise UsageError(f"{target} is a result file itself", hint="name a page: -o gallery.html")
    check_free(target, is_folder=False, overwrite=asked.overwrite)
    if asked.images is not None and not Path(asked.images).is_dir():
        raise UsageError(f"{asked.images} is no folder", hint="name the pictures' folder")
    if asked.draw is not None:
        check_draw(asked.draw, outputs, overwrite=asked.overwrite)
    if asked.assets is not None:
        check_assets(Path(asked.assets), overwrite=asked.overwrite)


def check_draw(folder: str, outputs: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse a folder that cannot be drawn into."""
    from pgcli.cli.drawing.option import check_folder

    if len(outputs) > 1:
        raise UsageError("--draw draws the rows of one result file", hint="name one of them")
    check_folder(folder, overwrite=overwrite)


def check_assets(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be one, or has something in it that is not to be replaced."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", hint="name a folder: --assets gallery")
    if not folder.parent.is_dir():
        raise UsageError(f"there is no folder {folder.parent}", hint="make it first")
    with writing(folder):
        if folder.is_dir() and any(folder.iterdir()) and not overwrite:
            raise exists(folder)
        folder.mkdir(exist_ok=True)


def copies(pictures: Iterator[Picture], assets: str | None, missing: Missing) -> Iterator[Entry]:
    """What the page holds of each picture, those for the folder beside it written there."""
    for number, picture in enumerate(pictures):
        if picture.fault is not None:
            missing.add(picture)
        elif assets is not None and picture.pixels is not None:
            try:
                write_below(assets, file_name(number), picture.pixels.tobytes(), token="view")
            except OutputFailed as problem:
                raise OutputFailed(str(problem), hint="make room or mend the place") from problem
        yield entry(picture, is_beside=assets is not None)


class Missing:
    """Pictures that are not shown: how many, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, picture: Picture) -> None:
        assert picture.fault is not None
        self.first = self.first or f"{picture.item.image}: {picture.fault.message}"
        self.count += 1


def report(target: Path, cards: Cards, missing: Missing, screen: Screen) -> None:
    """Say what was made, what is not in it, and what would be better."""
    size = target.stat().st_size
    screen.say(
        f"{target}: {len(cards.rows):,} rows, {len(cards.wanted):,} pictures, {decimal(size)}"
    )
    if missing.count:
        screen.say(
            f"{missing.count:,} picture{'s are' if missing.count > 1 else ' is'} not shown"
            f"{', the first is' if missing.count > 1 else ':'} {missing.first}",
            hint="--images DIR finds those that were moved",
        )
    if size > HEAVY:
        screen.say(
            "browsers open so large a page slowly",
            hint="--assets DIR puts pictures beside it, --size PX and --limit N make it smaller",
        )


def beside(output: Path) -> Path:
    """The page's name where none was given: the result file's, with another ending."""
    return output.with_suffix(".html") if output.suffix else output.with_name(f"{output.name}.html")


def address(target: Path, assets: str | None) -> str | None:
    """The folder of copies as the page names it: relative, so that both can be moved together."""
    if assets is None:
        return None
    relative = os.path.relpath(os.path.realpath(assets), os.path.realpath(target.parent))
    return "./" + quote(os.fsencode(relative)) + "/"


def apart(outputs: Sequence[Path]) -> list[str]:
    """A short name for each file that no other has: its own, or its whole path."""
    names = [output.name for output in outputs]
    return [output.name if names.count(output.name) == 1 else str(output) for output in outputs]


def title(names: Sequence[str]) -> str:
    """The page's title."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(Path(name).name for name in names[:NAMED]) + more


def workers(total: int) -> int | None:
    """How many processes copy pictures: one a core; few pictures need none."""
    return None if total < FEW_PICTURES else min(os.cpu_count() or 1, 16)
