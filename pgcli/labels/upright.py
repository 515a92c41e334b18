"""Finds the images of labels, turns boxes and masks upright, and fills polygons."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pgcli.boxes import clipped
from pgcli.errors import UsageError
from pgcli.images import ImageLimits
from pgcli.images.files import ImageError
from pgcli.images.formats import ImageHeader, whole_header
from pgcli.inputs.paths import locate_below
from pgcli.labels.json_values import InvalidValue, number, whole_number
from pgcli.labels.labelled_image import (
    LabelledImage,
    LabelledObject,
    LabelSettings,
    LeftOut,
    PixelSize,
)
from pgcli.records import Fault, Item, Region, Rle
from pgcli.rle import decode_mask, encode_mask, encode_runs, mask_area, union
from pgcli.stores.urls import url_scheme
from pgcli.text import count

NO_FILE = Fault("missing", "There is no such file.")
OUTSIDE_ROOT = Fault("path_not_allowed", "It is outside the folder of the images.")
UNKNOWN_SIZE = Fault("missing", "The file does not state its size, and the image is not there.")


def locate(name: str, settings: LabelSettings, folder: Path | None = None) -> str | None:
    """The real path of an image, or its URL; None, counted, if it is outside the root.

    The name is relative to `folder`, by default the root; images may be in either.
    """
    if url_scheme(name):
        return name
    roots = [os.path.realpath(path) for path in (settings.root, folder) if path is not None]
    for root in roots:
        location = locate_below(str(folder or settings.root), name, root)
        if location.fault is None and location.path is not None:
            return os.path.realpath(location.path)
    settings.counts.skip_image(name, OUTSIDE_ROOT)
    return None


def place_image(
    name: str,
    settings: LabelSettings,
    size: PixelSize | None = None,
    folder: Path | None = None,
) -> LabelledImage | None:
    """The image of this name without labels; None, counted, outside the root or without a size.

    Its size is the stated one, else that of its file.
    """
    if settings.as_given:
        return LabelledImage(name, name, size=size)
    path = locate(name, settings, folder)
    if path is None:
        return None
    image = with_header(LabelledImage(name, path, size=size))
    if size is None and image.header is None:
        settings.counts.skip_image(name, image.fault or UNKNOWN_SIZE)
        return None
    return image if image.header is None or size else replace(image, size=image.header.size)


def with_header(image: LabelledImage) -> LabelledImage:
    """The image with the header of its file, or with the fault of the file."""
    if image.header or image.fault or url_scheme(image.image):
        return image
    if not os.path.isfile(image.image):  # noqa: PTH113 - Path raises for long names
        return replace(image, fault=NO_FILE)
    try:
        return replace(image, header=whole_header(Item(0, image.id, image.id, image.image)))
    except ImageError as problem:
        return replace(image, fault=problem.fault)


def note_of_turned(ids: list[str]) -> str:
    """A note about images whose labels were turned."""
    images = count(len(ids), "image")
    return f"{images} annotated as stored: boxes are rotated upright by EXIF (first: {ids[0]})"


def is_stored(size: PixelSize | None, header: ImageHeader, where: str = "") -> bool:
    """Whether boxes with this stated size belong to the stored image, which EXIF rotates.

    Boxes of the upright size, as of any square, or without a stated size belong to the upright
    image. Raises UsageError, which starts with `where`, for any other size.
    """
    upright_size, stored = header.size, header.stored_size
    if size in (None, upright_size):
        return False
    if size == stored:
        return True
    words = f"{where}{size[0]} x {size[1]} is stated, and the image has {upright_size.width} x "
    words += f"{upright_size.height}"
    if stored != upright_size:
        words += f" ({stored.width} x {stored.height} as stored)"
    hint = "name the images that the annotations were made on, or scale the annotations"
    raise UsageError(words, hint=hint)


def upright(image: LabelledImage, header: ImageHeader, where: str = "") -> LabelledImage:
    """The image with boxes, masks and region of the upright picture, and with its size.

    Raises UsageError as `is_stored`.
    """
    if not is_stored(image.size, header, where) or image.size is None:
        return replace(image, size=header.size)
    objects = None
    if image.objects is not None:
        if any(o.mask is not None and o.mask.size != image.size[::-1] for o in image.objects):
            raise UsageError(f"{where}a mask has another size than the image", hint="correct it")
        objects = tuple(turned(o, header) for o in image.objects)
    region = image.region and turned_corners(image.region, header)
    return replace(image, objects=objects, region=region, size=header.size)


def turned(known: LabelledObject, header: ImageHeader) -> LabelledObject:
    """An object of the stored image in the upright one."""
    box = known.box.moved(turned_corners(known.box.corners, header))
    return known._replace(box=box, mask=known.mask and turned_mask(known.mask, header))


def turned_corners(corners: Region, header: ImageHeader) -> Region:
    """The corners of a box of the stored image in the upright one, whose sides are swapped."""
    width, height = header.stored_size
    left, top, right, bottom = corners
    x, y = (left, right), (top, bottom)
    flipped_x, flipped_y = (width - right, width - left), (height - bottom, height - top)
    (left, right), (top, bottom) = {
        5: (y, x),
        6: (flipped_y, x),
        7: (flipped_y, flipped_x),
        8: (y, flipped_x),
    }[header.orientation]
    return left, top, right, bottom


def turned_mask(mask: Rle, header: ImageHeader) -> Rle:
    """A mask of the stored image in the upright one. Raises ValueError for invalid counts."""
    axes = {5: (), 6: (1,), 7: (0, 1), 8: (0,)}[header.orientation]  # rows, columns
    return encode_mask(np.flip(decode_mask(mask).T, axes))


def in_image(image: LabelledImage, size: PixelSize, counts: LeftOut) -> Iterator[LabelledImage]:
    """The image with its boxes clipped, without crowds; what has no area in it is counted."""
    if image.region is not None:
        region = inside(image.region, size, LeftOut(), "")
        if region is None:
            counts.skip("texts of unread regions", image.id)
            return
        image = replace(image, region=region)
    objects, unread = [], set(image.unread)
    for known in image.objects or ():
        place = f"{known.box.label!r} in {image.id}"
        corners = inside(known.box.corners, size, counts, place)
        if corners is not None and not known.is_crowd:
            objects.append(known._replace(box=known.box.moved(corners)))
            continue
        unread.add(known.box.label)
        if corners is not None:
            counts.skip("crowds", place)
    if image.objects is not None:
        image = replace(image, objects=tuple(objects), unread=frozenset(unread))
    yield image


def inside(corners: Region, size: PixelSize, counts: LeftOut, name: str) -> Region | None:
    """The corners clipped to an image, with six digits; None, counted, without an area there."""
    left, top, right, bottom = (float(f"{corner:.6g}") for corner in corners)
    if (part := clipped((left, top, right, bottom), size)) is None:
        counts.skip("boxes with no area in the image", name)
    return part


MAX_CROSSINGS = 20_000_000  # of a region's polygons with the columns of its image


def checked_size(width: object, height: object, what: str) -> PixelSize:
    """The size of an image. Raises InvalidValue, also for too many pixels."""
    size = whole_number(width, f"{what}: width"), whole_number(height, f"{what}: height")
    if not 0 < size[0] * size[1] <= ImageLimits().max_pixels:
        raise InvalidValue(f"{what}: {size[0]} x {size[1]} is not the size of an image")
    return size


def points(flat: Sequence[object], what: str) -> np.ndarray:
    """A flat list of x and y as (n, 2), three points or more. Raises InvalidValue."""
    if len(flat) < 6 or len(flat) % 2:
        raise InvalidValue(f"{what} is not a polygon of three points or more")
    return np.array([number(coordinate, what) for coordinate in flat]).reshape(-1, 2)


def bounds(polygons: Sequence[np.ndarray]) -> Region:
    """Left, top, right and bottom of polygons."""
    every = np.concatenate(polygons)
    (left, top), (right, bottom) = every.min(axis=0).tolist(), every.max(axis=0).tolist()
    return left, top, right, bottom


def fill(polygons: Sequence[np.ndarray], size: PixelSize, what: str) -> Rle | None:
    """The mask of pixels with centres in the polygons (n, 2), by the even-odd rule, or None.

    Raises InvalidValue for polygons with too many points.
    """
    width, height = size
    runs = (_runs(polygon, size, what) for polygon in polygons)
    mask = union([encode_runs(runs_n2, size=(height, width)) for runs_n2 in runs])
    return mask if mask_area(mask) else None


def _runs(polygon_n2: np.ndarray, size: PixelSize, what: str) -> np.ndarray:
    """The runs of a polygon's pixels in the image read by columns, (n, 2)."""
    width, height = size
    start_n2, end_n2 = polygon_n2, np.roll(polygon_n2, -1, axis=0)
    low = np.minimum(start_n2[:, 0], end_n2[:, 0])
    high = np.maximum(start_n2[:, 0], end_n2[:, 0])
    first, last = (np.clip(np.ceil(side - 0.5), 0, width).astype(np.int64) for side in (low, high))
    crossings = last - first  # columns with centres that the edge passes
    if crossings.sum() > MAX_CROSSINGS:
        raise InvalidValue(f"{what} has too many points")
    edge = np.repeat(np.arange(len(polygon_n2)), crossings)
    before = np.repeat(np.cumsum(crossings) - crossings, crossings)
    column = first[edge] + np.arange(len(edge)) - before
    (x, y), (next_x, next_y) = start_n2[edge].T, end_n2[edge].T
    at = y + (column + 0.5 - x) * (next_y - y) / (next_x - x)
    row = np.clip(np.ceil(at - 0.5), 0, height).astype(np.int64)
    order = np.lexsort((row, column))
    runs_n2: np.ndarray = (column * height + row)[order].reshape(-1, 2)
    return runs_n2
