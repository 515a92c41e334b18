"""Where the pictures of rows are: by their paths, or in the input that the run read them from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pgcli.cli.again import items_again
from pgcli.errors import PgcliError
from pgcli.records import Fault, Item
from pgcli.sources.paths import leads_inside, real, scheme
from pgcli.sources.readers import READERS
from pgcli.state.folder import state_folder
from pgcli.state.state import record_in
from pgcli.views.gallery.cards import Wanted

#: Files with pictures in them, by which rows name what has no path of its own.
HOLDERS = tuple(READERS)
ELSEWHERE = Fault("url_blocked", "The row names an address, and addresses are not fetched.")
GONE = Fault("missing", "There is no such picture any more.")


def located(
    wanted: Iterable[Wanted], outputs: list[Path], images: str | None, tell: Callable[[str], None]
) -> Iterator[Item]:
    """An item for each picture that is wanted, in order: its file, its bytes, or why there is none.

    `images` is the folder that is looked in instead of the current one, and nowhere outside it.
    """
    inputs: dict[int, Input] = {}
    for number, one in enumerate(wanted):
        item = Item(number, one.id, one.image, fault=GONE)
        path = found(one, images)
        if scheme(one.image):
            yield Item(number, one.id, one.image, fault=ELSEWHERE)
        elif path is not None:
            yield Item(number, one.id, one.image, path)
        else:
            if one.file not in inputs:
                inputs[one.file] = Input(outputs[one.file], tell)
            again = inputs[one.file].at(one.index)
            if again is not None and again.id == one.id:
                item = Item(number, one.id, one.image, again.path, again.data, fault=again.fault)
            yield item


def found(one: Wanted, images: str | None) -> str | None:
    """The file that a row's path leads to, if it leads to one that may be a picture."""
    path = real(one.image)
    tried = [path] if images is None else [os.path.join(images, real(name)) for name in names(one)]  # noqa: PTH118
    for path in tried:
        with suppress(ValueError):  # a NUL, which no file name has
            is_inside = images is None or leads_inside(path, os.path.realpath(images))
            if is_inside and os.path.lexists(path) and not path.lower().endswith(HOLDERS):
                return path
    return None


def names(one: Wanted) -> list[str]:
    """What a row's picture may be called in another folder: as it was, or below the source."""
    return [one.image, one.id]


class Input:
    """What a run read, read once more from its beginning to its end, for those who wait in order.

    What cannot be opened again brings nothing.
    """

    def __init__(self, output: Path, tell: Callable[[str], None]):
        self._items: Iterator[Item] = iter(())
        self._last: Item | None = None
        record = record_in(state_folder(output))
        try:
            if record is not None:
                self._items = items_again(output, record) or self._items
        except (PgcliError, OSError, KeyError, TypeError, ValueError) as problem:
            tell(f"the input of {output} cannot be opened again: {problem}")

    def at(self, index: int) -> Item | None:
        """The item of an index, larger than those before; None where there is none."""
        try:
            while self._last is None or self._last.index < index:
                self._last = next(self._items)
        except (StopIteration, PgcliError, OSError, ValueError):
            self._items = iter(())
            return None
        return self._last if self._last.index == index else None
