"""Compares sizes in the truth and in rows, and rotates boxes of stored images upright."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.evaluation.truth import Key, Truths
from pgcli.images.errors import ImageError
from pgcli.images.formats import ImageHeader
from pgcli.images.image_spec import Size
from pgcli.labelled_rows import stated_size
from pgcli.output.reader import Row
from pgcli.records import Rle
from pgcli.results.frames import (
    OUTSIDE_PIXELS,
    Drawing,
    Frame,
    frame_notes,
    settled_frames,
    turned_box,
    turned_mask,
    whole_header,
)
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

    An image is read only if the truth states its sides swapped, or if the truth is known to have
    boxes of stored images, also where it states no size. What was turned is noted in `truths`.
    Raises UsageError for a truth of another size.
    """
    keys = [key for key in by_key if key in rows and by_key[key].has_regions]
    images = [TrueImage(key[0], by_key[key], rows[key], output, locator) for key in keys]
    frames = settled(images, truths)
    if Frame.STORED in frames:  # EXIF may also turn images without changing their size
        for image in images:
            image.read()
        frames = settled(images, truths)
    truths.remarks |= dict.fromkeys(frame_notes([key[0] for key in keys], frames))
    outside = [image.id for image in images if image.is_left]
    if outside:
        text = f"{count(len(outside), 'image')} with true boxes outside of it (first: {outside[0]})"
        truths.remarks[f"{text}: the truth states no size to compare"] = None
    read = zip(keys, images, frames, strict=True)
    return {**by_key, **{key: image.turned(frame) for key, image, frame in read}}


def settled(images: Sequence[TrueImage], truths: Truths) -> list[Frame | None]:
    """The frame of each image. Raises UsageError."""
    return settled_frames([image.drawing for image in images], swaps_sides=truths.swaps_sides)


class TrueImage:
    """The image of a row, and the truth about it, which states a size."""

    def __init__(self, id_: str, truth: RowTruth, row: Row, output: Path, locator: ImageLocator):
        self.id, self._truth, self._row = id_, truth, row
        self._output, self._locator = output, locator
        size = Size(*(stated_size(row) or (0, 0)))
        self._header = ImageHeader("", size)
        if truth.size != size and truth.size == size[::-1] and (problem := self.read()):
            raise UsageError(
                f"{id_}: the truth says {size.height} x {size.width}, the row {size.width} x "
                f"{size.height}, and the image cannot be read: {problem}",
                hint="--images names the folder with the images",
            )

    @property
    def drawing(self) -> Drawing:
        """The boxes on the image."""
        boxes = [box.corners for box in (*(self._truth.boxes or ()), *self._truth.crowds)]
        return Drawing(self.id, self._truth.size, boxes, self._header)

    @property
    def is_left(self) -> bool:
        """Whether boxes of a truth without a size exceed the image of the row."""
        if self._truth.size or self._header.orientation != 1:
            return False
        limits = [side + OUTSIDE_PIXELS for side in self._header.size]
        return any(box[2] > limits[0] or box[3] > limits[1] for box in self.drawing.boxes)

    def read(self) -> str:
        """Read the orientation of the image, if it is still there; return what prevents it."""
        if self._header.format:
            return ""
        item = self._locator.item(0, ImageRef.of(self._row, self._output))
        try:
            header = whole_header(item, self._locator.url_reader)
        except ImageError as problem:
            return str(problem)
        if header.size != self._header.size:
            return f"it now has {header.size.width} x {header.size.height} pixels"
        self._header = header
        return ""

    def turned(self, frame: Frame | None) -> RowTruth:
        """The truth about the upright image. Raises UsageError for polygons that are distorted."""
        truth, header = self._truth, self._header
        if frame is Frame.SWAPPED and any(truth.masks or ()):
            raise UsageError(
                f"{self.id}: its sides are swapped, which distorts its polygons",
                hint="export the project as JSON, and use `pgcli import --from labelstudio`",
            )
        if frame is not Frame.STORED:
            return truth
        return replace(
            truth,
            boxes=tuple(turned_box(box, header) for box in truth.boxes or ()),
            crowds=tuple(turned_box(box, header) for box in truth.crowds),
            masks=truth.masks and tuple(self._turned_mask(mask) for mask in truth.masks),
            size=header.size,
        )

    def _turned_mask(self, mask: Rle | None) -> Rle | None:
        """The mask in the upright image; None for one of another size."""
        is_stored = mask is not None and mask.size == self._header.stored_size[::-1]
        return turned_mask(mask, self._header) if mask is not None and is_stored else None
