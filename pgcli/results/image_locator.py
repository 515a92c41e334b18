"""Locates the images of rows: by path, by address, or in the input of their run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from pgcli.inputs.paths import locate_url, parse_path, resolves_inside, url_scheme
from pgcli.inputs.walk import expand_source
from pgcli.records import Item
from pgcli.results.gallery.cards import ImageRef
from pgcli.results.image_search import CONTAINER_ENDINGS, ImageSearch, is_in_container
from pgcli.results.run_input import ReopenedInput
from pgcli.stores.urls import is_web, url_path


def image_index(row: Mapping[str, Any]) -> int:
    """The index of a row's image; -1 for a row of another program without one."""
    return row["index"] if isinstance(row["index"], int) else -1


def image_key(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What consecutive rows of the same image have in common."""
    return row["index"], row["id"], row["image"]


def wanted_image(row: Mapping[str, Any], file: int = 0) -> ImageRef:
    """The image of a row of the result file with this number."""
    return ImageRef(file, image_index(row), str(row["id"]), str(row["image"]))


def locate_images(
    wanted: Iterable[ImageRef], outputs: Sequence[Path], search: ImageSearch
) -> Iterator[Item]:
    """An item for each image, in order; see `ImageLocator.item`."""
    locator = ImageLocator(outputs, search)
    for number, image in enumerate(wanted):
        yield locator.item(number, image)


def with_items(
    rows: Iterable[Mapping[str, Any]], locator: ImageLocator
) -> Iterator[tuple[Mapping[str, Any], Item]]:
    """Each row with its item, which is looked up once for consecutive rows of one image."""
    for index, (_, same) in enumerate(groupby(rows, key=image_key)):
        item = None
        for row in same:
            item = item or locator.item(index, wanted_image(row))
            yield row, item


class ImageLocator:
    """Locates the images of the rows of these outputs, in the order of the rows."""

    def __init__(self, outputs: Sequence[Path], search: ImageSearch):
        self._search = search
        inputs = {output: ReopenedInput(output, search) for output in outputs}
        self._inputs = [inputs[output] for output in outputs]

    def item(self, number: int, wanted: ImageRef) -> Item:
        """The image as an item: a file, an address, bytes, or the reason why it is missing."""
        if url_scheme(wanted.image):
            return self._item_at_url(number, wanted)
        path, run_input = self.find_file(wanted), self._inputs[wanted.file]
        if path is None or (self._search.images is None and run_input.may_contain(wanted.image)):
            item = run_input.item(number, wanted)
            if item is not None:
                return item
        if path is None:
            return Item(number, wanted.id, wanted.image, fault=run_input.fault(wanted.image))
        images = self._search.images
        root = None if images is None else os.path.realpath(images)
        return Item(number, wanted.id, wanted.image, path, root=root)

    def find_file(self, wanted: ImageRef) -> str | None:
        """The file that a row's path leads to, if it exists and may be an image."""
        images = self._search.images
        if images is None:
            candidates = [self.path_in_run(wanted)]
        else:
            names = (parse_path(wanted.image), parse_path(wanted.id))
            candidates = [os.path.join(images, name) for name in names]  # noqa: PTH118
        for path in candidates:
            with suppress(ValueError):  # a NUL, which no file name has
                if images is not None and not resolves_inside(path, os.path.realpath(images)):
                    continue
                if os.path.lexists(path) and not path.lower().endswith(CONTAINER_ENDINGS):
                    return path
        return None

    def path_in_run(self, wanted: ImageRef) -> str:
        """The path of a row's image, relative to the folder that its run was started in."""
        folder = self._inputs[wanted.file].folder
        return os.path.join(folder, parse_path(wanted.image))  # noqa: PTH118

    def source_paths(self) -> Iterator[str]:
        """The local paths that the runs of these outputs were given as sources."""
        for run_input in self._inputs:
            for source in run_input.sources:
                if source != "-" and not url_scheme(source):
                    path = os.path.join(run_input.folder, parse_path(source))  # noqa: PTH118
                    yield from expand_source(path)

    def _item_at_url(self, number: int, wanted: ImageRef) -> Item:
        """The image at an address, or in an archive at an address, if addresses are allowed."""
        url = locate_url(wanted.image, allow_urls=self._search.url_reader is not None)
        run_input, is_in_file = self._inputs[wanted.file], is_in_container(url_path(wanted.image))
        # the run's input has the signature of an address, which the row has not
        if url.fault is None and (is_in_file or is_web(wanted.image)):
            item = run_input.item(number, wanted)
            if item is not None:
                return item
            if is_in_file and run_input.has_failed:
                return Item(number, wanted.id, wanted.image, fault=run_input.fault(wanted.image))
        return Item(number, wanted.id, wanted.image, url.path, fault=url.fault)
