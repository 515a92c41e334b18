"""Finds the images of labels inside their folder, and turns boxes and masks upright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from pgcli import registry
from pgcli.boxes import clipped
from pgcli.errors import UsageError
from pgcli.images.files import ImageError, Size
from pgcli.images.formats import ImageHeader, whole_header
from pgcli.inputs.paths import locate_below
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    LabelledObject,
    Labels,
    LabelSettings,
    LeftOut,
    PixelSize,
)
from pgcli.records import Fault, Item, Region, Rle
from pgcli.rle import decode_mask, encode_mask
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


def read_upright(format: str, file: Path, settings: LabelSettings) -> Labels:
    """The labels in a file of this format, upright and clipped. Raises UsageError."""
    known: LabelFormat = registry.load("imports", format)
    labels = known.read(file, settings)
    names: dict[str, None] = {}
    turned: dict[str, None] = {}
    absent: dict[str, Fault] = {}
    images: list[LabelledImage] = []
    for image in map(with_header, labels.images):
        if image.fault is not None:
            absent[image.id] = image.fault
        names |= dict.fromkeys(o.box.label for o in image.objects or ())
        header = image.header or ImageHeader("", Size(*(image.size or (0, 0))))
        moved = upright(image, header, f"{file}: {image.id}: ")
        if moved.has_pixels and image.size != moved.size:
            turned[image.id] = None
        images += in_image(moved, header.size, settings.counts)
    for id_, fault in absent.items():
        settings.counts.miss(id_, fault)
    if turned:
        settings.counts.notes.append(note_of_turned([*turned]))
    return replace(
        labels, images=images, labels=sorted(names) if labels.labels is None else labels.labels
    )


def format_of(path: Path) -> str | None:
    """The format of labels that a file or folder has; None for another source."""
    formats = ((name, registry.load("imports", name)) for name in registry.names("imports"))
    return next((name for name, known in formats if known.recognizes(path)), None)


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
