"""Where the pictures of rows are: by their paths and addresses, or in what the run read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.reopen_input import metadata_of, reopen_items
from pgcli.errors import PgcliError
from pgcli.records import Fault, Item
from pgcli.remote import UrlReader
from pgcli.remote.urls import url_path
from pgcli.sources.endings import IMAGE_ENDINGS
from pgcli.sources.image_location import locate_url
from pgcli.sources.paths import parse_path, resolves_inside, url_scheme
from pgcli.sources.patterns import expand_source
from pgcli.sources.readers import READERS
from pgcli.state.atomic_file import read_json
from pgcli.state.run_record import read_record
from pgcli.state.state_folder import RUN, state_folder
from pgcli.views.gallery.cards import ImageRef
from pgcli.views.missing_images import MissingImages

#: Files with pictures in them, by which rows name what has no path of its own.
CONTAINER_ENDINGS = tuple(READERS)
#: Endings of sources that hold no bytes with names of their own.
NOT_TABLE_ENDINGS = tuple(IMAGE_ENDINGS | READERS.keys() - {".parquet"})
NOT_FOUND = Fault("missing", "There is no such picture any more.")
INPUT_CHANGED = Fault(
    "missing", "The run's input changed: another picture is in this one's place now."
)
INPUT_NOT_READABLE = Fault(
    "missing", "The picture lies in what the run read, which cannot be opened again."
)
NO_RUN_RECORD = Fault(
    "missing",
    "The picture lies within an archive or a table, and no run of these rows is known beside them.",
)

Report = Callable[..., None]
#: What a run read, once more; None where that was a pipe.
Reopen = Callable[[], Iterator[Item] | None]


@dataclass(frozen=True)
class ImageSearch:
    """How pictures are looked for, and who is told of what stands in the way.

    `images` is the folder that is looked in instead of where the run was begun, and nowhere outside
    it. Addresses are fetched by `url_reader`. `again` opens what the run read where no record
    beside the rows says it.
    """

    tell: Report
    images: str | None = None
    url_reader: UrlReader | None = None
    again: Reopen | None = None

    def hint(self, missing: MissingImages, moved: str = "") -> str:
        """What finds pictures that were not found; `moved` is for those that were."""
        is_asked = any(fault.code == "url_blocked" for fault in missing.faults)
        hints = (
            ["--allow-urls fetches those at addresses"] if is_asked and not self.url_reader else []
        )
        hints += [moved] if moved and NOT_FOUND in missing.faults else []
        return "; ".join(hints)


def image_key(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What the rows of one picture share, which are together."""
    return row["index"], row["id"], row["image"]


def wanted_image(row: Mapping[str, Any]) -> ImageRef:
    """The picture of a row of a single file."""
    index = row["index"] if isinstance(row["index"], int) else -1
    return ImageRef(0, index, str(row["id"]), str(row["image"]))


def locate_images(
    wanted: Iterable[ImageRef], outputs: Sequence[Path], search: ImageSearch
) -> Iterator[Item]:
    """An item for each picture that is wanted, in order: see `Places.item`."""
    places = ImageLocator(outputs, search)
    for number, one in enumerate(wanted):
        yield places.item(number, one)


class ImageLocator:
    """The pictures of rows of these outputs, found again. To be asked in the order of the rows."""

    def __init__(self, outputs: Sequence[Path], search: ImageSearch):
        self._search = search
        inputs = {output: RunInput(output, search) for output in outputs}
        self._inputs = [inputs[output] for output in outputs]

    def read(self) -> Iterator[str]:
        """The paths that the runs of these outputs were told to read."""
        for input in self._inputs:
            here = (source for source in input.sources if source != "-" and not url_scheme(source))
            for source in here:
                yield from expand_source(os.path.join(input.begun_in, parse_path(source)))  # noqa: PTH118

    def item(self, number: int, one: ImageRef) -> Item:
        """The picture as an item: its file, its address, its bytes, or why there is none."""
        if url_scheme(one.image):
            return self._at_address(number, one)
        path, input = self.file(one), self._inputs[one.file]
        if path is None or (self._search.images is None and input.may_hold(one.image)):
            held = input.item(number, one)
            if held is not None:
                return held
        if path is None:
            return Item(number, one.id, one.image, fault=input.fault(one.image))
        return Item(number, one.id, one.image, path)

    def named(self, one: ImageRef) -> str:
        """The path that a row names, from where its run was begun."""
        return os.path.join(self._inputs[one.file].begun_in, parse_path(one.image))  # noqa: PTH118

    def file(self, one: ImageRef) -> str | None:
        """The file that a row's path leads to, if it leads to one that may be a picture."""
        images, path = self._search.images, parse_path(one.image)
        if images is None:
            tried = [self.named(one)]
        else:
            tried = [os.path.join(images, parse_path(name)) for name in (one.image, one.id)]  # noqa: PTH118
        for path in tried:
            with suppress(ValueError):  # a NUL, which no file name has
                is_inside = images is None or resolves_inside(path, os.path.realpath(images))
                if (
                    is_inside
                    and os.path.lexists(path)
                    and not path.lower().endswith(CONTAINER_ENDINGS)
                ):
                    return path
        return None

    def _at_address(self, number: int, one: ImageRef) -> Item:
        """What is at an address, if addresses may be asked, or lies in an archive at one."""
        placed = locate_url(one.image, allow_urls=self._search.url_reader is not None)
        if placed.fault is None and is_in_container(url_path(one.image)):
            input = self._inputs[one.file]
            held = input.item(number, one)
            if held is not None:
                return held
            if input.is_closed:
                return Item(number, one.id, one.image, fault=input.fault(one.image))
        return Item(number, one.id, one.image, placed.path, fault=placed.fault)


def is_in_container(image: str) -> bool:
    """Whether a row names its picture by the file that it lies in."""
    folders = image.lower().split("/")[:-1]
    is_member = any(folder.endswith(CONTAINER_ENDINGS) for folder in folders)
    return is_member or image.lower().endswith(CONTAINER_ENDINGS)


class RunInput:
    """What a run read, read once more from its beginning to its end, for those who ask in order.

    It is opened when it is first asked. What cannot be opened again brings nothing.
    """

    def __init__(self, output: Path, search: ImageSearch):
        self._output, self._search = output, search
        self._record = read_record(output)
        told = metadata_of(read_json(state_folder(output) / RUN) or {})
        folder, sources = told.get("folder"), told.get("sources")
        #: The folder from which the run named its pictures; this one where no run is known.
        self.begun_in = folder if isinstance(folder, str) and Path(folder).is_dir() else ""
        listed = sources if isinstance(sources, list) else ()
        self.sources = [one for one in listed if isinstance(one, str)]
        self._items: Iterator[Item] | None = None
        self._last: Item | None = None
        self._why: Exception | str = ""
        self._is_told = False
        self._is_moved = False

    def may_hold(self, image: str) -> bool:
        """Whether a relative path may be the name of bytes in a table, not that of a file.

        Paths of files begin with the source that they were found in.
        """
        is_file = any(f"{image}/".startswith(one.rstrip("/") + "/") for one in self.sources)
        return not is_file and any(map(may_be_table, self.sources))

    def item(self, number: int, one: ImageRef) -> Item | None:
        """The picture as the run found it; None where it is not there any more."""
        self._is_moved = False
        if self._items is None:
            self._items = self._opened()
        try:
            while self._last is None or self._last.index < one.index:
                self._last = next(self._items)
        except StopIteration:
            return None
        except (PgcliError, OSError, ValueError) as problem:
            self._items = self._given_up(problem)
            return None
        found = self._last
        self._is_moved = found.index == one.index and found.id != one.id
        if (found.index, found.id) != (one.index, one.id):
            return None
        return Item(number, one.id, one.image, found.path, found.data, fault=found.fault)

    @property
    def is_closed(self) -> bool:
        """Whether what the run read could not be opened again, or not to its end."""
        return self._why != ""

    def fault(self, image: str) -> Fault:
        """Why there is no picture where the row names one; what stands in the way is told once."""
        may_be_held = is_in_container(image) or self.may_hold(image) or "-" in self.sources
        if self.is_closed and may_be_held:
            if not self._is_told:
                told = f"the input of {self._output} cannot be opened again: {self._why}"
                self._search.tell(told, hint=getattr(self._why, "hint", ""))
                self._is_told = True
            return INPUT_NOT_READABLE
        if self._is_moved:
            return INPUT_CHANGED
        is_known = self._record is not None or self._search.again is not None
        return NO_RUN_RECORD if is_in_container(image) and not is_known else NOT_FOUND

    def _opened(self) -> Iterator[Item]:
        try:
            if self._record is not None:
                items = reopen_items(self._output, self._record, self._search.url_reader)
            elif self._search.again is not None:
                items = self._search.again()
            else:
                return iter(())
        except (PgcliError, OSError, KeyError, TypeError, ValueError) as problem:
            return self._given_up(problem)
        if items is None:
            return self._given_up("it came on standard input, which is there once")
        return items

    def _given_up(self, why: Exception | str) -> Iterator[Item]:
        """Nothing more, for this reason."""
        self._why = why
        return iter(())


def may_be_table(source: str) -> bool:
    """Whether rows of a source may bring bytes and a name for them: it, or a file in it."""
    path = url_path(source) if url_scheme(source) else parse_path(source)
    return path != "-" and not path.lower().endswith(NOT_TABLE_ENDINGS)
