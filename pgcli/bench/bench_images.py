"""Decodes the images of a benchmark once, as many as are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pgcli.errors import NoInputError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import DecodedImage, Item


class BenchImages:
    """Decoded images and their files; an image without a file is written to `folder`."""

    def __init__(self, items: Iterator[Item], spec: ImageSpec, folder: Path):
        self._spec, self._folder = spec, folder
        self._remaining = self._readable(items)
        self._images: list[DecodedImage] = []
        self._files: list[Path] = []

    def first(self, count: int) -> tuple[list[DecodedImage], list[Path]]:
        """The first `count` images and their files, or all if there are fewer.

        Raises NoInputError if no image can be read.
        """
        for image in islice(self._remaining, max(0, count - len(self._images))):
            self._files.append(self._file(image))
            self._images.append(replace(image, item=replace(image.item, data=None)))
        if not self._images:
            raise NoInputError(
                "no image to measure with",
                hint="leave out --images to measure with generated images",
            )
        return self._images[:count], self._files[:count]

    def _readable(self, items: Iterator[Item]) -> Iterator[DecodedImage]:
        images = (decode(item, self._spec, ImageLimits()) for item in items)
        return (image for image in images if image.fault is None)

    def _file(self, image: DecodedImage) -> Path:
        if image.item.path is not None:
            return Path(image.item.path)
        file = self._folder / f"{len(self._files):05}.png"
        file.write_bytes(image.item.data or b"")
        return file
