"""The input of a run, reopened to find the images of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.errors import PgcliError
from pgcli.inputs.endings import IMAGE_ENDINGS
from pgcli.inputs.paths import parse_path, url_scheme
from pgcli.inputs.readers import READERS
from pgcli.records import Fault, Item
from pgcli.results.gallery.cards import ImageRef
from pgcli.results.image_search import (
    INPUT_CHANGED,
    INPUT_NOT_READABLE,
    NO_RUN_RECORD,
    NOT_FOUND,
    ImageSearch,
    is_in_container,
)
from pgcli.run.reopen import reopened_rows
from pgcli.run.state.record import RunRecord, read_record, state_folder
from pgcli.stores import open_folder
from pgcli.stores.urls import url_path

if TYPE_CHECKING:
    from pgcli.inputs import Inventory

#: Endings of sources that cannot be a table with image bytes.
NOT_TABLE_ENDINGS = tuple(IMAGE_ENDINGS | READERS.keys() - {".parquet"})
#: Items are read one after the other over a gap of as many: to begin anew may take longer.
MAX_GAP = 1000


def saved_record(output: Path) -> RunRecord | None:
    """The record of the run that wrote an output; None if there is none."""
    try:
        return read_record(open_folder(state_folder(str(output))))
    except FileNotFoundError:
        return None


class ReopenedInput:
    """The input of a run as it is recorded, opened by the first call of `item`.

    An input that cannot be reopened has no items.
    """

    def __init__(self, output: Path, search: ImageSearch):
        self._output, self._search = output, search
        self._record = saved_record(output)
        values = self._record.input if self._record is not None else {}
        folder, sources = values.get("folder"), values.get("sources")
        #: The folder that relative paths of the run start from; empty for the current folder.
        self.folder = folder if isinstance(folder, str) and Path(folder).is_dir() else ""
        listed = sources if isinstance(sources, list) else ()
        self.sources = [source for source in listed if isinstance(source, str)]
        self._items: Iterator[Item] = iter(())
        self._last: Item | None = None
        self._problem: Exception | str = ""
        self._is_reported = False
        self._has_changed = False

    def may_contain(self, image: str) -> bool:
        """Whether a relative path may name bytes of a table instead of a file.

        Paths of files start with the source that they were found in.
        """
        is_file = any(f"{image}/".startswith(one.rstrip("/") + "/") for one in self.sources)
        return not is_file and any(map(may_be_table, self.sources))

    def item(self, number: int, wanted: ImageRef) -> Item | None:
        """The image as the run read it; None if the input has no such item."""
        self._has_changed = False
        if self._inventory is None:
            return None
        try:
            match = self._item_at(self._inventory, wanted.index)
            if match is None or match.id != wanted.id:
                self._has_changed = match is not None
                match = self._inventory.find({"index": wanted.index, "id": wanted.id})
        except (PgcliError, OSError, ValueError) as problem:
            self._problem, self._inventory = problem, None
            return None
        if match is None:
            return None
        return replace(match, index=number, id=wanted.id, image=wanted.image)

    def _item_at(self, inventory: Inventory, index: int) -> Item | None:
        """The item of this index. Items of tables and archives are read one after the other."""
        last = -1 if self._last is None else self._last.index
        if not 0 <= index < (inventory.total or 0):
            return None
        if not last <= index <= last + MAX_GAP:
            self._items, self._last = inventory.items(index), None
        elif last < 0:
            self._items = inventory.items()
        while self._last is None or self._last.index < index:
            self._last = next(self._items)
        return self._last

    @property
    def has_failed(self) -> bool:
        """Whether the input could not be reopened, or not be read to its end."""
        return self._problem != ""

    def fault(self, image: str) -> Fault:
        """Why the image was not found. A problem of the whole input is reported once."""
        in_input = is_in_container(image) or self.may_contain(image) or "-" in self.sources
        if self.has_failed and in_input:
            if not self._is_reported:
                message = f"the input of {self._output} cannot be reopened: {self._problem}"
                self._search.say(message, getattr(self._problem, "hint", ""))
                self._is_reported = True
            return INPUT_NOT_READABLE
        if self._has_changed:
            return INPUT_CHANGED
        is_known = self._record is not None or self._search.reopen is not None
        return NO_RUN_RECORD if is_in_container(image) and not is_known else NOT_FOUND

    @cached_property
    def _inventory(self) -> Inventory | None:
        try:
            if self._record is not None:
                rows = reopened_rows(str(self._output), self._search.url_reader)
                inventory = None if rows is None else rows.inventory
            elif self._search.reopen is not None:
                inventory = self._search.reopen()
            else:
                return None
        except (PgcliError, OSError, ValueError) as problem:
            self._problem = problem
            return None
        if inventory is None:
            self._problem = "it was standard input, which can be read only once"
        return inventory


def may_be_table(source: str) -> bool:
    """Whether a source, or a file in it, may be a table with image bytes."""
    path = url_path(source) if url_scheme(source) else parse_path(source)
    return path != "-" and not path.lower().endswith(NOT_TABLE_ENDINGS)
