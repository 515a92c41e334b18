"""The input of a run, reopened to find the images of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pgcli.cli.result_files.image_search import (
    INPUT_CHANGED,
    INPUT_NOT_READABLE,
    NO_RUN_RECORD,
    NOT_FOUND,
    ImageSearch,
    is_in_container,
)
from pgcli.cli.result_files.reopen_input import reopen_items, stored_metadata
from pgcli.errors import PgcliError
from pgcli.records import Fault, Item
from pgcli.remote.urls import url_path
from pgcli.sources.endings import IMAGE_ENDINGS
from pgcli.sources.paths import parse_path, url_scheme
from pgcli.sources.readers import READERS
from pgcli.state.run_record import read_record
from pgcli.views.gallery.cards import ImageRef

#: Endings of sources that cannot be a table with image bytes.
NOT_TABLE_ENDINGS = tuple(IMAGE_ENDINGS | READERS.keys() - {".parquet"})


class ReopenedInput:
    """The input of a run, read again once from beginning to end.

    It is opened by the first call of `item`, whose indices must ascend. An input that cannot be
    reopened has no items.
    """

    def __init__(self, output: Path, search: ImageSearch):
        self._output, self._search = output, search
        self._record = read_record(output)
        metadata = stored_metadata(output)
        folder, sources = metadata.get("folder"), metadata.get("sources")
        #: The folder that relative paths of the run start from; empty for the current folder.
        self.folder = folder if isinstance(folder, str) and Path(folder).is_dir() else ""
        listed = sources if isinstance(sources, list) else ()
        self.sources = [source for source in listed if isinstance(source, str)]
        self._items: Iterator[Item] | None = None
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
        """The image as the run read it; None if the input has no such item any more."""
        self._has_changed = False
        if self._items is None:
            self._items = self._open()
        try:
            while self._last is None or self._last.index < wanted.index:
                self._last = next(self._items)
        except StopIteration:
            return None
        except (PgcliError, OSError, ValueError) as problem:
            self._items = self._fail(problem)
            return None
        found = self._last
        self._has_changed = found.index == wanted.index and found.id != wanted.id
        if (found.index, found.id) != (wanted.index, wanted.id):
            return None
        return replace(found, index=number, id=wanted.id, image=wanted.image)

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
                self._search.report(message, hint=getattr(self._problem, "hint", ""))
                self._is_reported = True
            return INPUT_NOT_READABLE
        if self._has_changed:
            return INPUT_CHANGED
        is_known = self._record is not None or self._search.reopen is not None
        return NO_RUN_RECORD if is_in_container(image) and not is_known else NOT_FOUND

    def _open(self) -> Iterator[Item]:
        try:
            if self._record is not None:
                items = reopen_items(self._output, self._record, self._search.url_reader)
            elif self._search.reopen is not None:
                items = self._search.reopen()
            else:
                return iter(())
        except (PgcliError, OSError, KeyError, TypeError, ValueError) as problem:
            return self._fail(problem)
        if items is None:
            return self._fail("it was standard input, which can be read only once")
        return items

    def _fail(self, problem: Exception | str) -> Iterator[Item]:
        """Remember the problem; there are no more items."""
        self._problem = problem
        return iter(())


def may_be_table(source: str) -> bool:
    """Whether a source, or a file in it, may be a table with image bytes."""
    path = url_path(source) if url_scheme(source) else parse_path(source)
    return path != "-" and not path.lower().endswith(NOT_TABLE_ENDINGS)
