"""Finds the images of saved rows: where their run found them, or in a given folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.errors import PgcliError, UsageError
from pgcli.inputs.paths import NO_IMAGE, locate_url
from pgcli.inputs.readers import manifest_ending
from pgcli.inputs.tables import GONE
from pgcli.inputs.walk import expand_source
from pgcli.pipeline.progress.events import Message, OnEvent, ignore
from pgcli.pipeline.reopen import reopened_rows
from pgcli.pipeline.state.record import RunRecord, read_record, state_location
from pgcli.records import Fault, Item
from pgcli.stores import Reader, open_folder
from pgcli.stores.files import parse_path, resolves_inside
from pgcli.stores.urls import is_web, url_path, url_scheme

if TYPE_CHECKING:
    from pgcli.inputs import Inventory

#: Items are read in order across a gap of this many, since starting again may take longer.
MAX_GAP = 1000
NOT_FOUND = Fault("missing", "The image no longer exists.")
INPUT_CHANGED = Fault("missing", "The run's input changed: another image has this index now.")
INPUT_NOT_READABLE = Fault("missing", "The image is in the run's input, which cannot be reopened.")
NO_RUN_RECORD = Fault(
    "missing",
    "The image is in an archive or a table, and there is no record of the run of these rows.",
)

Row = Mapping[str, Any]


@dataclass
class MissingImages:
    """The number of unreadable images by fault, and a description of the first one."""

    faults: Counter[Fault] = field(default_factory=Counter)
    first: str = ""

    @property
    def count(self) -> int:
        return self.faults.total()

    def add(self, image: str, fault: Fault) -> None:
        """Count one more."""
        self.faults[fault] += 1
        name = image if image.strip() else repr(image)
        self.first = self.first or f"{name}: {fault.message}"


@dataclass(frozen=True, slots=True)
class ImageRef:
    """The image of a row, and the row's output."""

    output: Path
    index: int
    id: str
    image: str

    @classmethod
    def of(cls, row: Row, output: Path) -> ImageRef:
        return cls(output, image_index(row), str(row.get("id")), str(row.get("image") or ""))


def image_index(row: Row) -> int:
    """The index of a row's image; -1 for a row of another program without one."""
    index = row.get("index")
    return index if isinstance(index, int) else -1


def image_key(row: Row) -> tuple[object, ...]:
    """The key of an image, which consecutive rows share."""
    return row["index"], row["id"], row["image"]


def saved_record(output: Path) -> RunRecord | None:
    """The record of the run that wrote an output, or None."""
    try:
        return read_record(open_folder(state_location(str(output))))
    except FileNotFoundError:
        return None


def is_in_container(image: str) -> bool:
    """Whether the path of a row's image leads into an archive or table."""
    return any(map(manifest_ending, image.split("/")))


class ImageLocator:
    """Finds the images of rows, best in the order of the rows.

    A file is where its run found it. With `images`, it is searched for in this folder only, by the
    paths of the run that lead into it, and by the rows' paths and ids relative to it. `url_reader`
    fetches URLs. Problems of many images go to `on_event`. Raises UsageError if `images` is not a
    folder.
    """

    def __init__(
        self,
        on_event: OnEvent = ignore,
        images: str | None = None,
        url_reader: Reader | None = None,
    ):
        if images is not None and not os.path.isdir(images):  # noqa: PTH112 - a NUL is no error
            raise UsageError(f"{images} is not a folder", hint="name the folder with the images")
        self.on_event, self.url_reader = on_event, url_reader
        self._images = images
        self._input = lru_cache(maxsize=None)(lambda output: RunInput(output, self))

    def say(self, message: str, hint: str = "") -> None:
        """Report something about many images."""
        self.on_event(Message(message, hint))

    def hint(self, missing: MissingImages, moved: str = "") -> str:
        """The options that would find the missing images; `moved` is the hint for moved files."""
        hints = []
        if self.url_reader is None and any(fault.code == "url_blocked" for fault in missing.faults):
            hints.append("--allow-urls downloads them")
        if moved and NOT_FOUND in missing.faults:
            hints.append(moved)
        return "; ".join(hints)

    def items(self, images: Iterable[ImageRef]) -> Iterator[Item]:
        """The item of each image, in order."""
        return (self.item(number, image) for number, image in enumerate(images))

    def with_items(self, rows: Iterable[Row], output: Path) -> Iterator[tuple[Row, Item]]:
        """Each row with the item of its image."""
        for number, (_, rows_of_image) in enumerate(groupby(rows, key=image_key)):
            item = None
            for row in rows_of_image:
                item = item or self.item(number, ImageRef.of(row, output))
                yield row, item

    def item(self, number: int, image: ImageRef) -> Item:
        """The image as a file, a URL, bytes, or with the fault why it is missing."""
        run_input, is_url = self._input(image.output), url_scheme(image.image) is not None
        path = None if is_url else self.find_file(image)
        is_in_input = path is None or self._images is None
        if is_url:
            url = locate_url(image.image, allow_urls=self.url_reader is not None)
            if url.fault is not None:
                return Item(number, image.id, image.image, url.path, fault=url.fault)
            path = url.path
            # the run's input has the signature of a URL, unlike the row
            is_in_input = is_in_container(url_path(image.image)) or is_web(image.image)
        if is_in_input and (match := run_input.item(image)) is not None:
            return replace(match, index=number, id=image.id, image=image.image)
        is_lost = is_url and is_in_container(url_path(image.image)) and run_input.problem
        if path is None or is_lost:
            return Item(number, image.id, image.image, fault=run_input.fault(image.image))
        root = None if is_url or self._images is None else os.path.realpath(self._images)
        return Item(number, image.id, image.image, path, root=root)

    def _candidates(self, image: ImageRef) -> list[str]:
        """The possible paths of an image, the likeliest first."""
        name, id_ = parse_path(image.image), parse_path(image.id)
        candidates = [self.path_in_run(image)] if name else []
        if name and not self._input(image.output).is_recorded:  # merged, corrected, imported rows
            candidates.append(os.path.join(image.output.parent, name))  # noqa: PTH118
        if self._images is not None:
            candidates += [os.path.join(self._images, part) for part in (name, id_) if part]  # noqa: PTH118
        return candidates

    def find_file(self, image: ImageRef) -> str | None:
        """The existing file of a row's path, unless it is an archive or table."""
        root = None if self._images is None else os.path.realpath(self._images)
        for path in self._candidates(image):
            with suppress(ValueError):  # a NUL, which no file name has
                if root is not None and not resolves_inside(path, root):
                    continue
                if os.path.lexists(path) and not manifest_ending(path):
                    return path
        return None

    def path_in_run(self, image: ImageRef) -> str:
        """The path of a row's image from the working directory of its run."""
        folder = self._input(image.output).folder
        return os.path.join(folder, parse_path(image.image))  # noqa: PTH118

    def source_paths(self, outputs: Iterable[Path]) -> Iterator[str]:
        """The local sources of the runs of these outputs."""
        for run_input in map(self._input, outputs):
            for source in run_input.sources:
                if source != "-" and not url_scheme(source):
                    path = os.path.join(run_input.folder, parse_path(source))  # noqa: PTH118
                    yield from expand_source(path)


class SequentialItems:
    """The items of an inventory by index; reading them in order is fast."""

    def __init__(self, inventory: Inventory):
        self.inventory = inventory
        self._items: Iterator[Item] = iter(())
        self._last: Item | None = None

    def at(self, index: int) -> Item | None:
        """The item of this index, or None."""
        last = -1 if self._last is None else self._last.index
        if not 0 <= index < (self.inventory.total or 0):
            return None
        if not 0 <= last <= index <= last + MAX_GAP:
            self._items, self._last = self.inventory.items(index), None
        while self._last is None or self._last.index < index:
            self._last = next(self._items)
        return self._last


class RunInput:
    """The input of a run by its record, opened when the first item is needed."""

    def __init__(self, output: Path, locator: ImageLocator):
        self._output, self._locator = output, locator
        self._record = saved_record(output)
        values = self._record.input if self._record is not None else {}
        folder, sources = values.get("folder"), values.get("sources")
        #: The working directory of the run; empty for the current one.
        self.folder = folder if isinstance(folder, str) and os.path.isdir(folder) else ""  # noqa: PTH112
        listed = sources if isinstance(sources, list) else ()
        self.sources = [source for source in listed if isinstance(source, str)]
        self.is_recorded = self._record is not None
        #: Why the input cannot be read; empty if it can.
        self.problem = ""
        self._hint, self._is_reported = "", False
        self._reason: Fault | None = None  # why the last item is missing

    @cached_property
    def _items(self) -> SequentialItems | None:
        if self._record is None:
            return None
        rows = reopened_rows(str(self._output), self._locator.url_reader)
        if rows is None:
            self.problem = "it was standard input, which can be read only once"
        return None if rows is None else SequentialItems(rows.inventory)

    def item(self, image: ImageRef) -> Item | None:
        """The image as the run read it, or None if it is gone."""
        self._reason = None
        if self.problem:
            return None
        try:
            if self._items is None:
                return None
            match = self._items.at(image.index)
        except (PgcliError, OSError, ValueError) as problem:
            self.problem, self._hint = str(problem), getattr(problem, "hint", "")
            return None
        if match is not None and match.id != image.id:
            is_gone = match.fault == GONE.fault  # the file, which says nothing of its rows
            self._reason = match.fault if is_gone else INPUT_CHANGED
            return None
        if match is None or match.path is None or match.data is not None or match.span is not None:
            return match
        is_here = url_scheme(match.path) is not None or os.path.lexists(match.path)
        return match if is_here else None

    def fault(self, image: str) -> Fault:
        """Why the image is missing. A problem of the whole input is reported once."""
        if not image:
            return NO_IMAGE
        # paths of files start with their source
        is_file = any(f"{image}/".startswith(source.rstrip("/") + "/") for source in self.sources)
        if self.problem and (is_in_container(image) or not is_file):
            if not self._is_reported:
                message = f"the input of {self._output} cannot be reopened: {self.problem}"
                self._locator.say(message, self._hint)
                self._is_reported = True
            return INPUT_NOT_READABLE
        if self._reason is not None:
            return self._reason
        return NO_RUN_RECORD if is_in_container(image) and self._record is None else NOT_FOUND
