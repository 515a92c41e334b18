"""Compares sizes in the truth and in rows, and rotates boxes of stored images upright."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.evaluation.truth import Key, Truths
from pgcli.images.errors import ImageError
from pgcli.images.formats import ImageHeader, whole_header
from pgcli.images.image_spec import Size
from pgcli.labels.columns import are_stored, is_within, stated_size, turned_corners, turned_mask
from pgcli.output.reader import Row
from pgcli.records import Box, Rle
from pgcli.results.images import ImageLocator, ImageRef
from pgcli.wording import count


def upright_truths(
    by_key: Mapping[Key, RowTruth],
    rows: Mapping[Key, Row],
    output: Path,
    truths: Truths,
    locator: ImageLocator,
) -> dict[Key, RowTruth]:
    """The truths, with boxes and masks of the upright images that the rows of `output` are about.

    What was turned is noted in `truths`. Raises UsageError for a truth of another size.
    """
    upright = dict(by_key)
    turned, outside = [], []
    for key, truth in by_key.items():
        if key not in rows or not truth.has_regions:
            continue
        size = Size(*(stated_size(rows[key]) or (0, 0)))
        boxes = [box.corners for box in (*(truth.boxes or ()), *truth.crowds)]
        if truth.size is None:
            outside += [key[0]] * (not all(is_within(box, size) for box in boxes))
            continue
        header = ImageHeader("", size)
        if truth.size != size and truth.size == size[::-1]:
            header = row_image_header(key[0], rows[key], size, output, locator)
        where, swaps_sides = f"{truths.name}: {key[0]}: ", truths.swaps_sides
        if are_stored(where, truth.size, header, boxes, swaps_sides=swaps_sides):
            upright[key] = turned_truth(truth, header)
            turned.append(key[0])
    for ids, what, why in (
        (turned, "annotated as stored", "boxes are rotated upright by EXIF"),
        (outside, "with true boxes outside of it", "the truth states no size to compare"),
    ):
        if ids:
            truths.remarks[f"{count(len(ids), 'image')} {what}: {why} (first: {ids[0]})"] = None
    return upright


def row_image_header(
    id_: str, row: Row, size: Size, output: Path, locator: ImageLocator
) -> ImageHeader:
    """The header of the image of a row, whose size is the row's. Raises UsageError."""
    try:
        header = whole_header(locator.item(0, ImageRef.of(row, output)), locator.url_reader)
        problem = f"it now has {header.size.width} x {header.size.height} pixels"
    except ImageError as error:
        header, problem = ImageHeader("", Size(0, 0)), str(error)
    if header.size != size:
        raise UsageError(
            f"{id_}: the truth says {size.height} x {size.width}, the row {size.width} x "
            f"{size.height}, and the image cannot be read: {problem}",
            hint="--images names the folder with the images",
        )
    return header


def turned_truth(truth: RowTruth, header: ImageHeader) -> RowTruth:
    """The truth about the upright image; masks of another size than the stored image are None."""

    def turned(box: Box) -> Box:
        return box.moved(turned_corners(box.corners, header))

    def upright(mask: Rle | None) -> Rle | None:
        is_stored = mask is not None and mask.size == header.stored_size[::-1]
        return turned_mask(mask, header) if mask is not None and is_stored else None

    return replace(
        truth,
        boxes=tuple(map(turned, truth.boxes or ())),
        crowds=tuple(map(turned, truth.crowds)),
        masks=truth.masks and tuple(map(upright, truth.masks)),
        size=header.size,
    )
