"""Decodes the images of a benchmark once, and only as many as it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pgcli.device.decoding import decoding_processes
from pgcli.errors import NoInputError
from pgcli.images import ImageDecoder, ImageSpec
from pgcli.images.pool import decode_ahead
from pgcli.records import DecodedImage, Item


class BenchImages:
    """Decoded images and their files; an image without a file is written to `folder`.

    They are decoded as for a model on the `device`: a photograph takes a tenth of a second.
    """

    def __init__(self, items: Iterator[Item], spec: ImageSpec, folder: Path, device: str = "cpu"):
        self._items, self._spec, self._folder = enumerate(items), spec, folder
        self._workers = decoding_processes(device)
        self._images: list[DecodedImage] = []

    def first(self, count: int) -> tuple[list[DecodedImage], list[Path]]:
        """The first `count` readable images and their files, or fewer if there are no more.

        Raises NoInputError if no image can be read.
        """
        while items := [*islice(self._items, max(0, count - len(self._images)))]:
            decoded = decode_ahead(
                [self._in_file(number, item) for number, item in items],
                ImageDecoder(self._spec),
                workers=None,
                total=len(items),
                default_workers=self._workers,
            )
            with closing(decoded):
                images = [image for image in decoded if image is not None]
            self._images += [image for image in images if image.fault is None]
        if not self._images:
            raise NoInputError(
                "no image to measure with",
                hint="drop --source to measure with generated images",
            )
        images = self._images[:count]
        return images, [Path(image.item.path or "") for image in images]

    def _in_file(self, number: int, item: Item) -> Item:
        if item.path is not None:
            return item
        file = self._folder / f"{number:05}.png"
        file.write_bytes(item.data or b"")
        return replace(item, path=str(file), data=None)
