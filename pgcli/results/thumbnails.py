"""Makes thumbnails for the gallery, without the metadata of the originals."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice
from time import perf_counter

import numpy as np

from pgcli.images import ImageError, ImageLimits, load_thumbnail
from pgcli.images.files import item_bytes
from pgcli.records import DecodedImage, Item
from pgcli.text import printable

#: How WebP is encoded. Method 2 of 6 is twice as fast as Pillow's default of 4, and a few percent
#: larger.
WEBP = {"quality": 82, "method": 2}
#: The longest side of a thumbnail, by the number of images, so that a page of thousands of images
#: still opens in a browser.
SIDES = ((20, 2048), (60, 1024), (400, 640), (3_000, 448))
MIN_SIDE = 320


@dataclass(frozen=True)
class ThumbnailMaker:
    """Makes a thumbnail with sides of at most `side` pixels."""

    side: int
    limits: ImageLimits

    def __call__(self, item: Item) -> DecodedImage:
        """The item's image with the bytes of the encoded thumbnail as its pixels, or its fault."""
        started = perf_counter()
        if item.fault is not None:
            return without_copy(item)
        try:
            data = item_bytes(item, self.limits)
            size, small = load_thumbnail(data, self.side, self.limits)
        except ImageError as problem:
            return DecodedImage(replace(item, data=None), None, None, None, 0.0, problem.fault)
        small.info = {}  # EXIF may hold locations and names, which are not for the page's readers
        file = BytesIO()
        small.save(file, "WEBP", **WEBP)
        pixels = np.frombuffer(file.getvalue(), np.uint8)
        milliseconds = (perf_counter() - started) * 1000
        return DecodedImage(item, size.width, size.height, pixels, milliseconds)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a file's bytes."""
        return (-1,)


def without_copy(item: Item) -> DecodedImage:
    """The result for an item that has a fault."""
    return DecodedImage(item, None, None, None, 0.0, item.fault)


def default_side(count: int) -> int:
    """The default longest side in pixels of the thumbnails of `count` images."""
    return next((side for max_count, side in SIDES if count <= max_count), MIN_SIDE)


def thumbnail_entry(image: DecodedImage) -> str:
    """The page's data of an image as JSON: its thumbnail as base64 and its upright size.

    Without a thumbnail: 0, no size, and the error as a code and a message.
    """
    if image.fault is not None or image.pixels is None:
        fault = image.fault
        assert fault is not None
        return json.dumps([0, None, None, fault.code, printable(fault.message)])
    text = base64.b64encode(image.pixels.tobytes()).decode("ascii")
    return f'["{text}",{image.width},{image.height}]'


IMAGES_PER_PART = 24  # a screen needs a few parts


def image_parts(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The parts with the entries of the images, by name, as JSON."""
    remaining = iter(entries)
    texts = iter(lambda: ",".join(islice(remaining, IMAGES_PER_PART)), "")
    return ((f"images-{number}", f"[{text}]") for number, text in enumerate(texts))
