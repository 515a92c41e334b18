"""Compares the sizes of annotations with their images, and rotates boxes of stored images upright.

A camera may store a photograph on its side, with an EXIF orientation. Rows have boxes of the
upright image, but some tools draw on the stored one. If the orientation swaps the sides, the
stated size shows which image a tool used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from pgcli.errors import UsageError
from pgcli.images.errors import ImageError
from pgcli.images.files import checked_bytes, item_bytes, read_file
from pgcli.images.formats import (
    HEADER_BYTES,
    ImageHeader,
    read_file_header,
    read_header,
    read_whole_header,
)
from pgcli.images.image_spec import ImageLimits, Size
from pgcli.images.pixels import PNG_EXIF, SIDEWAYS
from pgcli.records import Box, Item, Region, Rle
from pgcli.rle import decode_mask, encode_mask
from pgcli.stores import Reader, RemoteError
from pgcli.stores.urls import url_scheme
from pgcli.wording import count

OUTSIDE_PIXELS = 1  # by which a box may exceed its image, since annotation tools round


class SizesDifferError(Exception):
    """The stated size is neither the upright nor the stored size of the image."""

    def __init__(self, stated: tuple[int, int], header: ImageHeader):
        (width, height), stored = header.size, header.stored_size
        more = f" ({stored.width} x {stored.height} as stored)" if stored != header.size else ""
        self.stated, self.actual = f"{stated[0]} x {stated[1]}", f"{width} x {height}{more}"
        super().__init__(f"{self.stated} is stated, and the image has {self.actual}")


class Frame(Enum):
    """The image that boxes were drawn on, by the stated size and by the boxes themselves.

    The stored size is stated with boxes that fit both sizes (SIDEWAYS), only the stored one
    (STORED), or only the upright one (SWAPPED, as in Label Studio's COCO). UNKNOWN is for an image
    that EXIF rotates without a change of size.
    """

    UPRIGHT = "upright"
    SIDEWAYS = "sideways"
    STORED = "stored"
    SWAPPED = "swapped"
    UNKNOWN = "unknown"


#: The frames of a single image with boxes to rotate, since nothing shows that they are upright.
TURNED = (Frame.SIDEWAYS, Frame.STORED)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes of an image, the size stated with them, and the header of the image, if known."""

    name: str
    stated: tuple[int, int] | None
    boxes: Sequence[Region]
    header: ImageHeader | None

    def frame(self) -> Frame | None:
        """The frame; None if it is unknown or irrelevant. Raises SizesDifferError."""
        if self.header is None:
            return None
        upright, stored = self.header.size, self.header.stored_size
        if self.stated is not None and self.stated not in (upright, stored):
            raise SizesDifferError(self.stated, self.header)
        if self.header.orientation == 1 or not self.boxes:
            return None
        if upright == stored or self.stated is None:
            return Frame.UNKNOWN
        if self.stated == upright:
            return Frame.UPRIGHT
        fits_upright, fits_stored = self._fits(upright), self._fits(stored)
        if fits_upright == fits_stored:
            return Frame.SIDEWAYS
        return Frame.SWAPPED if fits_upright else Frame.STORED

    def _fits(self, size: Size) -> bool:
        """Whether the boxes are within an image of this size."""
        boxes_n4 = np.array(self.boxes, float)
        highest_2 = np.array(size) + OUTSIDE_PIXELS
        return bool((boxes_n4 >= -OUTSIDE_PIXELS).all() and (boxes_n4[:, 2:] <= highest_2).all())


def read_original(item: Item, limits: ImageLimits, reader: Reader | None) -> bytes:
    """The bytes of an item's image, read again. Raises ImageError."""
    if item.fault is not None:
        raise ImageError(item.fault)
    is_here = item.data is not None or item.path is None or url_scheme(item.path) is None
    if reader is not None and not is_here:
        try:
            return checked_bytes(reader.read(item.path or ""), limits)
        except RemoteError as problem:
            raise ImageError(problem.fault) from problem
    return item_bytes(item, limits)


def whole_header(item: Item, reader: Reader | None = None) -> ImageHeader:
    """The header of an item's image, which a `reader` fetches from a URL.

    Only the start of a file is read, and the end of a PNG, or all of it if the end may have an
    orientation. Raises ImageError.
    """
    limits = ImageLimits()
    path = item.path if item.data is None and item.span is None and item.fault is None else None
    if path is None or url_scheme(path) is not None:
        end = data = read_original(item, limits, reader)
        header = read_header(data)
    else:
        header, data, end = read_file_header(path, limits, item.root), b"", b""
        if header.format == "PNG":
            size = os.path.getsize(path)  # noqa: PTH202 - a path as written
            span = max(size - HEADER_BYTES, 0), min(size, HEADER_BYTES)
            end = read_file(path, limits, root=item.root, span=span)
    if header.format == "PNG" and any(name in end for name in PNG_EXIF):
        return read_whole_header(data or read_original(item, limits, reader), limits)
    return header


def settled_frames(drawings: Sequence[Drawing], *, swaps_sides: bool = False) -> list[Frame | None]:
    """The frame of each image of a file, which one tool wrote.

    An UNKNOWN frame follows the other images if they agree. SIDEWAYS images are STORED, or SWAPPED
    if the tool `swaps_sides`. Raises UsageError for images of another size, and for a file with
    STORED and SWAPPED images.
    """
    frames: list[Frame | None] = []
    others: list[str] = []
    for drawing in drawings:
        try:
            frames.append(drawing.frame())
        except SizesDifferError as problem:
            others.append(f"{drawing.name}: {problem}")
    if others:
        more = f", the first of {len(others):,} such images" if len(others) > 1 else ""
        raise UsageError(
            f"{others[0]}{more}",
            hint="name the images that the annotations were made on, or scale the annotations",
        )
    first = {
        frame: drawing.name for frame, drawing in zip(frames[::-1], drawings[::-1], strict=True)
    }
    if Frame.STORED in first and Frame.SWAPPED in first:
        raise UsageError(
            f"the stored size is stated for {first[Frame.STORED]} with boxes of the stored image, "
            f"and for {first[Frame.SWAPPED]} with boxes of the upright one",
            hint="correct the sizes or the boxes of one of them",
        )
    sideways = Frame.SWAPPED if swaps_sides or Frame.SWAPPED in first else Frame.STORED
    frames = [sideways if frame is Frame.SIDEWAYS else frame for frame in frames]
    shown = {*frames} - {None, Frame.UNKNOWN}
    common = shown.pop() if len(shown) == 1 else Frame.UNKNOWN
    common = Frame.UPRIGHT if common is Frame.SWAPPED else common
    return [common if frame is Frame.UNKNOWN else frame for frame in frames]


def frame_notes(names: Sequence[str], frames: Sequence[Frame | None]) -> Iterator[str]:
    """Notes on the images that EXIF rotates, by their names."""
    for frame, text in (
        (Frame.STORED, "annotated as stored: boxes are rotated upright by EXIF"),
        (Frame.SWAPPED, "with swapped sides in the file: boxes are taken as upright"),
        (Frame.UNKNOWN, "rotated by EXIF without a change of size: boxes are taken as upright"),
    ):
        matches = [name for name, match in zip(names, frames, strict=True) if match is frame]
        if matches:
            yield f"{count(len(matches), 'image')} {text} (first: {matches[0]})"


def turned_corners(corners: Region, header: ImageHeader) -> Region:
    """The corners of a box of the stored image in the upright one."""
    width, height = header.stored_size
    left, top, right, bottom = corners
    x, y = (left, right), (top, bottom)
    flipped_x, flipped_y = (width - right, width - left), (height - bottom, height - top)
    (left, right), (top, bottom) = {
        1: (x, y),
        2: (flipped_x, y),
        3: (flipped_x, flipped_y),
        4: (x, flipped_y),
        5: (y, x),
        6: (flipped_y, x),
        7: (flipped_y, flipped_x),
        8: (y, flipped_x),
    }[header.orientation]
    return left, top, right, bottom


def turned_box(box: Box, header: ImageHeader) -> Box:
    """A box of the stored image in the upright one."""
    return box.moved(turned_corners(box.corners, header))


def turned_mask(mask: Rle, header: ImageHeader) -> Rle:
    """A mask of the stored image in the upright one. Raises ValueError for invalid counts."""
    pixels_HW = decode_mask(mask)
    if header.orientation in SIDEWAYS:
        pixels_HW = pixels_HW.T
    # then reversed axes: rows, columns
    for axis in {2: [1], 3: [0, 1], 4: [0], 6: [1], 7: [0, 1], 8: [0]}.get(header.orientation, []):
        pixels_HW = np.flip(pixels_HW, axis)
    return encode_mask(pixels_HW)
