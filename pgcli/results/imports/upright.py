"""Compares the sizes of annotations with the image files, and rotates boxes upright."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pgcli import registry
from pgcli.images.errors import ImageError
from pgcli.images.formats import ImageHeader
from pgcli.records import Fault, Item
from pgcli.results.frames import (
    Drawing,
    Frame,
    frame_notes,
    settled_frames,
    turned_box,
    turned_corners,
    turned_mask,
    whole_header,
)
from pgcli.results.imports.shapes import PixelSize, inside
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    BoxWithMask,
    ImportCounts,
    ImportSettings,
    ReadAnnotations,
    TrueText,
)
from pgcli.stores.urls import url_scheme

NO_FILE = Fault("missing", "There is no such file.")


def read_annotations(format: str, file: Path, settings: ImportSettings) -> Annotations:
    """The annotations in a file of this format, upright and clipped. Raises UsageError."""
    read: ReadAnnotations = registry.load("imports", format)
    annotations = read(file, settings)
    return annotations if annotations.is_upright else turned_upright(annotations, settings.counts)


def turned_upright(annotations: Annotations, counts: ImportCounts) -> Annotations:
    """The annotations with upright boxes and masks, clipped to their images.

    Missing images keep their stated size. Raises UsageError for images of another size.
    """
    images = [with_header(image) for image in annotations.images]
    drawings = [
        Drawing(
            image.id,
            (image.width, image.height) if image.is_stated else None,
            [
                *(box.corners for box, _ in image.boxes),
                *(crowd.corners for crowd in image.crowds),
                *(text.region for text in image.texts if text.region),
            ],
            image.header,
        )
        for image in images
    ]
    frames = settled_frames(drawings, swaps_sides=annotations.swaps_sides)
    counts.notes += frame_notes([image.id for image in images], frames)
    upright = [
        in_upright(image, frame, counts) for image, frame in zip(images, frames, strict=True)
    ]
    return replace(annotations, images=upright)


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


def in_upright(image: AnnotatedImage, frame: Frame | None, counts: ImportCounts) -> AnnotatedImage:
    """The image with its upright size and boxes; skipped regions are counted."""
    header = image.header
    width, height = (image.width, image.height) if header is None else header.size
    unread = set(image.unread)

    def fit(boxes: Iterable[BoxWithMask]) -> Iterator[BoxWithMask]:
        for box, mask in boxes:
            place = f"{box.label!r} in {image.id}"
            if frame is Frame.SWAPPED and mask is not None:
                counts.skip("polygons of images with swapped sides", place)
                unread.add(box.label)
                continue
            if header is not None and frame is Frame.STORED:
                if mask is not None and mask.size != header.stored_size[::-1]:
                    counts.skip("masks of another size than their image", place)
                    mask = None
                box, mask = turned_box(box, header), mask and turned_mask(mask, header)
            if corners := inside(box.corners, (width, height), counts, place):
                yield box.moved(corners), mask
            else:
                unread.add(box.label)

    turned_by = header if frame is Frame.STORED else None
    boxes = tuple(fit(image.boxes))
    crowds = tuple(crowd for crowd, _ in fit((crowd, None) for crowd in image.crowds))
    texts = tuple(fitted_text(entry, turned_by, (width, height)) for entry in image.texts)
    for _ in range(texts.count(None)):
        counts.skip("texts of unread regions", image.id)
    for crowd in crowds:
        counts.skip("crowds", f"{crowd.label!r} in {image.id}")
    return replace(
        image,
        width=width,
        height=height,
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
