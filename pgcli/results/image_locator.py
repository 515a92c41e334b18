"""Finds the images of saved rows: where their run found them, or in a given folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.errors import PgcliError, UsageError
from pgcli.inputs.options import manifest_ending
from pgcli.inputs.paths import NO_IMAGE, expand_source, locate_url
from pgcli.inputs.tables import GONE
from pgcli.records import Fault, Item
from pgcli.run.events import Message, OnEvent, ignore
from pgcli.run.state.record import RunRecord, read_record, state_location
from pgcli.run.status import reopened_rows
from pgcli.stores import Reader, open_folder
from pgcli.stores.files import parse_path, resolves_inside
from pgcli.stores.urls import is_web, url_path, url_scheme

if TYPE_CHECKING:
    from pgcli.inputs import Inventory

#: Items are read in order across a gap of this many, since starting again may take longer.
MAX_GAP = 1000
NOT_FOUND = Fault("missing", "The image no longer exists.")
INPUT_CHANGED = Fault("missing", "The run's input changed: another image has this index now.")
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
    path of the run if that leads into it, and by the row's path and id relative to it. `url_reader`
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
        self._images, self._inputs = images, dict[Path, RunInput]()

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
        name, is_url = image.image, url_scheme(image.image) is not None
        if is_url:
            url = locate_url(name, allow_urls=self.url_reader is not None)
            # the run's input has the signature of a URL, unlike the row
            is_plain = not is_web(name) and not is_in_container(url_path(name))
            if url.fault is not None or is_plain:
                return Item(number, image.id, name, url.path, fault=url.fault)
        fault = NO_IMAGE if not name else NOT_FOUND
        if is_url or self._images is None:
            match = self._input(image.output).item(image)
            if not isinstance(match, Fault):
                return replace(match, index=number, id=image.id, image=name)
            fault = match
        if is_url:
            is_lost = is_in_container(url_path(name))
            return Item(number, image.id, name, url.path, fault=fault if is_lost else None)
        path = self.find_file(image)
        root = None if self._images is None else os.path.realpath(self._images)
        return Item(number, image.id, name, path, root=root, fault=None if path else fault)

    def find_file(self, image: ImageRef) -> str | None:
        """The existing file of a row's path, unless it is an archive or table."""
        name, id_ = parse_path(image.image), parse_path(image.id)
        candidates = [self.path_in_run(image)] if name else []
        if self._images is not None:
            candidates += [os.path.join(self._images, part) for part in (name, id_) if part]  # noqa: PTH118
        elif name and self._input(image.output).sources is None:  # merged or imported rows
            candidates.append(os.path.join(image.output.parent, name))  # noqa: PTH118
        for path in candidates:
            with suppress(ValueError):  # a NUL, which no file name has
                if self._images is not None and not resolves_inside(
                    path, os.path.realpath(self._images)
                ):
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
            for source in run_input.sources or ():
                if source != "-" and not url_scheme(source):
                    path = os.path.join(run_input.folder, parse_path(source))  # noqa: PTH118
                    yield from expand_source(path)

    def _input(self, output: Path) -> RunInput:
        if output not in self._inputs:
            self._inputs[output] = RunInput(output, self.url_reader)
        return self._inputs[output]


class RunInput:
    """The input of a run by its record, opened when the first item is needed.

    `folder` is the working directory of the run, empty for the current one, and `sources` are None
    without a record.
    """

    def __init__(self, output: Path, url_reader: Reader | None):
        self._output, self._url_reader = output, url_reader
        record = saved_record(output)
        values = record.input if record is not None else {}
        folder, sources = values.get("folder"), values.get("sources")
        self.folder = folder if isinstance(folder, str) and os.path.isdir(folder) else ""  # noqa: PTH112
        listed = sources if isinstance(sources, list) else ()
        self.sources = None if record is None else [name for name in listed if type(name) is str]
        self._items: Iterator[Item] = iter(())
        self._last: Item | None = None
        self._problem = ""

    @cached_property
    def _inventory(self) -> Inventory:
        rows = reopened_rows(str(self._output), self._url_reader)
        if rows is None:
            raise UsageError(
                "it was standard input, which can be read only once",
                hint="--images names the folder with the images",
            )
        return rows.inventory

    def item(self, image: ImageRef) -> Item | Fault:
        """The image as the run read it, or why it is missing."""
        if not image.image:
            return NO_IMAGE
        is_inside = is_in_container(image.image)
        if self.sources is None:
            return NO_RUN_RECORD if is_inside else NOT_FOUND
        try:
            match = None if self._problem else self._at(image.index)
        except (PgcliError, OSError, ValueError) as problem:
            self._problem = str(problem)
        if self._problem:
            message = f"The run's input cannot be reopened: {self._problem}."
            return Fault("missing", message) if is_inside else NOT_FOUND
        if match is None:
            return NOT_FOUND
        if match.id != image.id:
            # a file that is gone says nothing of its rows
            return GONE.fault if GONE.fault and match.fault == GONE.fault else INPUT_CHANGED
        if match.path is None or match.data is not None or match.span is not None:
            return match
        is_here = url_scheme(match.path) is not None or os.path.lexists(match.path)
        return match if is_here else NOT_FOUND

    def _at(self, index: int) -> Item | None:
        """The item of this index; reading them in order is fast."""
        last = -1 if self._last is None else self._last.index
        if not 0 <= index < (self._inventory.total or 0):
            return None
        if not 0 <= last <= index <= last + MAX_GAP:
            self._items, self._last = self._inventory.items(index), None
        while self._last is None or self._last.index < index:
            self._last = next(self._items)
        return self._last
