"""Reads one annotation of COCO: its box, its mask, its caption and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pgcli.foreign_text import without_marks
from pgcli.inputs.options import REGION
from pgcli.labels.json_values import (
    InvalidValue,
    array,
    fraction,
    id_text,
    mapping,
    number,
    whole_number,
)
from pgcli.labels.labelled_image import ImportCounts, TrueText
from pgcli.labels.shapes import (
    PixelSize,
    bounds,
    checked_size,
    fill,
    points,
)
from pgcli.printable import encodable
from pgcli.records import Box, Region, Rle
from pgcli.regions import split_locations
from pgcli.rle import encode_counts, mask_area, mask_bounds

JsonEntry = Mapping[str, Any]


class UnreadableError(Exception):
    """An unreadable annotation, with the kind of its fault for `ImportCounts.skip`."""


def has_shape(annotation: JsonEntry) -> bool:
    """Whether an annotation has a box or a mask, which may be invalid."""
    return bool(annotation.get("bbox") or annotation.get("segmentation"))


def read_caption(annotation: JsonEntry) -> TrueText | None:
    """A caption with its prompt and region, which exports of pgcli have, or None.

    A blank caption beside a box or a mask is ignored.
    """
    caption, prompt = annotation.get("caption"), annotation.get("prompt")
    if not isinstance(caption, str) or (not caption.strip() and has_shape(annotation)):
        return None
    prompt, region = encodable(prompt) if isinstance(prompt, str) else None, None
    if (corners := four_numbers(annotation.get(REGION))) is not None:
        # the prompt has the region as location tokens, too
        prompt, region = prompt and split_locations(prompt)[0], corners
    return TrueText(encodable(without_marks(caption).strip()), prompt, region)


def read_annotation(
    annotation: JsonEntry,
    where: str,
    labels: Mapping[str, str | None],
    size: PixelSize | None,
    counts: ImportCounts,
) -> tuple[Box, Rle | None, float | None]:
    """The box, the mask and the area of an annotation; the label may be empty beside a caption.

    Raises UnreadableError.
    """
    if "segments_info" in annotation:
        raise UnreadableError("annotations of panoptic segmentation")
    key = id_text(annotation.get("category_id"))
    is_caption = annotation.get("category_id") is None and read_caption(annotation) is not None
    if not is_caption and (key is None or key not in labels):
        raise UnreadableError("annotations of categories that are not listed")
    name = "" if is_caption else labels[key or ""]
    if name is None:
        raise UnreadableError("annotations of categories with names that no prompt can contain")
    mask, corners = None, None
    try:
        mask, corners = read_segmentation(annotation.get("segmentation"), where, size, counts)
    except UnreadableError as problem:
        if not annotation.get("bbox"):
            raise
        counts.skip(str(problem), where)
    if annotation.get("bbox"):
        if (sides := four_numbers(annotation["bbox"])) is None:
            raise UnreadableError("boxes without four numbers")
        left, top, width, height = sides
        if width < 0 or height < 0:
            raise UnreadableError("boxes with a negative side")
        corners = left, top, left + width, top + height
        attributes = annotation.get("attributes")
        if mask is None and isinstance(attributes, dict) and attributes.get("rotation"):
            raise UnreadableError("boxes with a rotation")
    if corners is None:
        raise UnreadableError("annotations without a box or a mask")
    score = own_number(annotation, "score", where, counts)
    confidence = own_number(annotation, "confidence", where, counts)
    object_size = own_number(annotation, "area", where, counts)
    score = 1.0 if score is None else score
    confidence = score if confidence is None else confidence
    return Box(name, *corners, score, confidence), mask, object_size


def own_number(annotation: JsonEntry, name: str, where: str, counts: ImportCounts) -> float | None:
    """An optional number of an annotation; None, counted, for another value."""
    value = annotation.get(name)
    if value is None:
        return None
    if (known := optional_number(value)) is None:
        counts.skip(f"{name}s without a number", where)
    return known


def optional_number(value: object) -> float | None:
    """The value if it is a number, else None."""
    try:
        return number(value, "")
    except InvalidValue:
        return None


def check_scores(annotations: Sequence[JsonEntry]) -> None:
    """Raise InvalidValue for a score or a confidence that is not from 0 to 1."""
    for place, annotation in enumerate(annotations, start=1):
        for name in ("score", "confidence"):
            if optional_number(annotation.get(name)) is not None:
                fraction(annotation[name], f"annotation {place}: {name}")


def read_segmentation(
    value: object, where: str, size: PixelSize | None, counts: ImportCounts
) -> tuple[Rle | None, Region | None]:
    """The mask of polygons or run lengths and its bounds, None without one.

    Polygons without an image size have bounds only. Raises UnreadableError.
    """
    if not value:
        return None, None
    try:
        if isinstance(value, list):
            every = [array(polygon, "polygon") for polygon in value]
            polygons = [points(polygon, "polygon") for polygon in every if len(polygon) >= 6]
            if not polygons:
                raise UnreadableError("polygons with fewer than three points")
            if len(polygons) < len(every):
                counts.skip("polygons with fewer than three points", where)
            if size is None:
                counts.skip("masks of images without a size", where)
            return None if size is None else fill(polygons, size, "mask"), bounds(polygons)
        mask = run_lengths(mapping(value, "mask"))
        if size is not None and mask.size != size[::-1]:
            raise UnreadableError("masks of another size than their image")
        return (mask, mask_bounds(mask)) if mask_area(mask) else (None, None)
    except ValueError:
        raise UnreadableError("masks that cannot be read") from None


def run_lengths(encoding: JsonEntry) -> Rle:
    """A mask in one of COCO's encodings. Raises InvalidValue and ValueError."""
    counts = encoding.get("counts")
    height, width = (whole_number(side, "size") for side in array(encoding.get("size"), "size"))
    checked_size(width, height, "size")
    if isinstance(counts, str):
        return Rle((height, width), counts)
    runs = [whole_number(run, "counts") for run in array(counts, "counts")]
    return encode_counts(runs, size=(height, width))


def four_numbers(value: object) -> Region | None:
    """The value as four numbers; None for anything else."""
    try:
        first, second, third, fourth = (number(side, "") for side in array(value, ""))
    except ValueError:
        return None
    return first, second, third, fourth
