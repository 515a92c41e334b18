"""Compares the sizes of annotations with the image files, and rotates boxes upright."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pgcli import registry
from pgcli.images.errors import ImageError
from pgcli.images.formats import ImageHeader, whole_header
from pgcli.labels.columns import are_stored, turned_corners, turned_mask
from pgcli.labels.labelled_image import (
    AnnotatedImage,
    Annotations,
    BoxWithMask,
    ImportCounts,
    ImportSettings,
    ReadAnnotations,
    TrueText,
)
from pgcli.labels.shapes import PixelSize, inside
from pgcli.records import Fault, Item
from pgcli.stores.urls import url_scheme
from pgcli.wording import count

NO_FILE = Fault("missing", "There is no such file.")


def read_annotations(format: str, file: Path, settings: ImportSettings) -> Annotations:
    """The annotations in a file of this format, upright and clipped. Raises UsageError."""
    read: ReadAnnotations = registry.load("imports", format)
    annotations = read(file, settings)
    if annotations.is_upright:
        return annotations
    return turned_upright(file, annotations, settings.counts)


def turned_upright(file: Path, annotations: Annotations, counts: ImportCounts) -> Annotations:
    """The annotations with upright boxes and masks, clipped to their images.

    Missing images keep their stated size. Raises UsageError for images of another size.
    """
    turned, unclear, images = [], [], []
    for image in map(with_header, annotations.images):
        regions = [
            *(box.corners for box, _ in image.boxes),
            *(crowd.corners for crowd in image.crowds),
            *(text.region for text in image.texts if text.region),
        ]
        header = image.header
        stated = (image.width, image.height) if image.is_stated else None
        swaps_sides = annotations.swaps_sides and bool(regions)
        stored = header is not None and are_stored(
            f"{file}: {image.id}: ", stated, header, regions, swaps_sides=swaps_sides
        )
        images.append(in_upright(image, header if stored else None, counts))
        if stored and regions:
            turned.append(image.id)
        elif regions and header is not None and header.orientation != 1:
            is_unclear = stated is None or header.size == header.stored_size
            unclear += [image.id] * is_unclear
    for ids, text in (
        (turned, "annotated as stored: boxes are rotated upright by EXIF"),
        (unclear, "rotated by EXIF without a change of size: boxes are taken as upright"),
    ):
        if ids:
            counts.notes.append(f"{count(len(ids), 'image')} {text} (first: {ids[0]})")
    return replace(annotations, images=images)


def with_header(image: AnnotatedImage) -> AnnotatedImage:
    """The image with the header of its file, or with the fault of the file."""
    if image.header or image.fault or url_scheme(image.image):
        return image
    if not os.path.isfile(image.image):  # noqa: PTH113 - Path raises for long names
        return replace(image, fault=NO_FILE)
    try:
        return replace(image, header=whole_header(Item(0, image.id, image.id, image.image)))
    except ImageError as problem:
        return replace(image, fault=problem.fault)


def in_upright(
    image: AnnotatedImage, turned_by: ImageHeader | None, counts: ImportCounts
) -> AnnotatedImage:
    """The image with its upright size and boxes, `turned_by` its header if they are as stored.

    Skipped regions are counted.
    """
    size = (image.width, image.height) if image.header is None else image.header.size
    unread = set(image.unread)

    def fit(boxes: Iterable[BoxWithMask]) -> Iterator[BoxWithMask]:
        for box, mask in boxes:
            place = f"{box.label!r} in {image.id}"
            if turned_by is not None:
                if mask is not None and mask.size != turned_by.stored_size[::-1]:
                    counts.skip("masks of another size than their image", place)
                    mask = None
                box = box.moved(turned_corners(box.corners, turned_by))
                mask = mask and turned_mask(mask, turned_by)
            if corners := inside(box.corners, size, counts, place):
                yield box.moved(corners), mask
            else:
                unread.add(box.label)

    boxes = tuple(fit(image.boxes))
    crowds = tuple(crowd for crowd, _ in fit((crowd, None) for crowd in image.crowds))
    texts = tuple(fitted_text(entry, turned_by, size) for entry in image.texts)
    for _ in range(texts.count(None)):
        counts.skip("texts of unread regions", image.id)
    for crowd in crowds:
        counts.skip("crowds", f"{crowd.label!r} in {image.id}")
    return replace(
        image,
        width=size[0],
        height=size[1],
        boxes=boxes,
        crowds=crowds,
        texts=tuple(filter(None, texts)),
        unread=frozenset(unread),
    )


def fitted_text(entry: TrueText, header: ImageHeader | None, size: PixelSize) -> TrueText | None:
    """A text with its region rotated upright and clipped; None without an area."""
    if entry.region is None:
        return entry
    corners = entry.region if header is None else turned_corners(entry.region, header)
    region = inside(corners, size, ImportCounts(), "")
    return None if region is None else replace(entry, region=region)
