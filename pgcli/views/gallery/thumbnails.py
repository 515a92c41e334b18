"""Small copies of pictures for the gallery, with nothing of the originals but pixels."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from io import BytesIO
from time import perf_counter

import numpy as np

from pgcli.images import ImageError, ImageLimits, load_thumbnail
from pgcli.printable import printable
from pgcli.records import DecodedImage, Item

QUALITY = 82
EFFORT = 2  # of 6: twice as fast as Pillow's own 4, and a few percent larger
ENDING = ".webp"
#: The longest side of a copy, by how many pictures there are: some fill a screen, and ten thousand
#: still make a page that a browser opens.
SIDES = ((60, 1024), (400, 640), (3_000, 448))
SMALLEST = 320

#: What the script reads of a picture: its copy (base64, 1 for a file beside the page, 0 for none),
#: the original's upright size, and what is wrong with it, as a code and a sentence.
Entry = tuple[str | int, int | None, int | None] | tuple[int, None, None, str, str]


@dataclass(frozen=True)
class Copying:
    """Copies one picture, at most `side` pixels on either side. Travels to other processes."""

    side: int
    limits: ImageLimits

    def __call__(self, item: Item) -> DecodedImage:
        """The item's picture with the bytes of a WebP file as its pixels, or its fault."""
        started = perf_counter()
        if item.fault is not None:
            return DecodedImage(item, None, None, None, 0.0, item.fault)
        try:
            size, small = load_thumbnail(
                item.path if item.data is None else item.data, self.side, self.limits
            )
        except ImageError as problem:
            return DecodedImage(replace(item, data=None), None, None, None, 0.0, problem.fault)
        small.info = {}  # EXIF, places and names among it, is not for who gets the page
        file = BytesIO()
        small.save(file, "WEBP", quality=QUALITY, method=EFFORT)
        pixels = np.frombuffer(file.getvalue(), np.uint8)
        milliseconds = (perf_counter() - started) * 1000
        return DecodedImage(item, size.width, size.height, pixels, milliseconds)


def side_for(count: int) -> int:
    """The longest side in pixels that copies of so many pictures have by default."""
    return next((side for most, side in SIDES if count <= most), SMALLEST)


def entry(picture: DecodedImage, *, is_beside: bool) -> Entry:
    """What the page holds of a picture whose copy `is_beside` the page, or else within it."""
    if picture.fault is not None or picture.pixels is None:
        fault = picture.fault
        assert fault is not None
        return (0, None, None, fault.code, printable(fault.message))
    copy = 1 if is_beside else base64.b64encode(picture.pixels.tobytes()).decode("ascii")
    return (copy, picture.width, picture.height)


def file_name(number: int) -> str:
    """Where a copy lies in the folder beside the page: a thousand in each of its folders."""
    return f"{number // 1000:03}/{number:06}{ENDING}"
