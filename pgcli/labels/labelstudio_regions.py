"""Reads the regions of a Label Studio annotation: results with one id are about one region."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pgcli.labels.json_values import array, fraction, label, mapping, number, text
from pgcli.labels.labelled_image import ImageTruth, ImportCounts, TrueText
from pgcli.labels.shapes import (
    PixelSize,
    bounds,
    fill,
    inside,
    rotated_bounds,
    rotation,
)
from pgcli.records import Box, Region, Rle

Value = Mapping[str, Any]
#: The key of a result's texts in its value, by the result's type.
TEXT_KEYS = {"textarea": "text", "choices": "choices"}
#: Keys of a value with the position of a region in an image or a video.
PLACE_KEYS = (
    *("x", "y", "width", "height", "radiusX", "radiusY"),
    *("points", "vertices", "rle", "imageDataURL", "sequence"),
)
#: The types of unread regions, by their prefixes.
UNREAD = {
    "keypoint": "keypoints",
    "brush": "masks of brushes",
    "bitmask": "bitmasks",
    "vector": "vectors",
    "video": "regions of videos",
}
SHAPES = ("rectangle", "polygon", "ellipse", *UNREAD)


@dataclass(frozen=True)
class RegionResults:
    """The results with one id; `what` names the first result."""

    what: str
    results: Sequence[Value]

    @cached_property
    def kinds(self) -> list[str]:
        """The types of the results."""
        return [str(result.get("type")) for result in self.results]

    @cached_property
    def values(self) -> list[Value]:
        """The values of the results. Raises InvalidValue."""
        return [
            mapping(result.get("value") or {}, f"{self.what}: value") for result in self.results
        ]

    @cached_property
    def is_in_image(self) -> bool:
        """Whether it is a part of the image. Raises InvalidValue."""
        return any(map(place_of, self.values)) or any(
            kind.startswith(SHAPES) for kind in self.kinds
        )

    @cached_property
    def labels(self) -> list[str]:
        """Its labels, each once. Raises InvalidValue."""
        names: dict[str, None] = {}
        for kind, value in zip(self.kinds, self.values, strict=True):
            if kind.endswith("labels") and value.get(kind) is not None:
                where = f"{self.what}: {kind}"
                names |= dict.fromkeys(label(name, where) for name in array(value[kind], where))
        return list(names)

    @property
    def texts(self) -> Iterator[str]:
        """Its texts and choices. Raises InvalidValue."""
        for kind, value in zip(self.kinds, self.values, strict=True):
            if kind in TEXT_KEYS:
                where, entries = f"{self.what}: {kind}", value.get(TEXT_KEYS[kind])
                for entry in [entries] if isinstance(entries, str) else array(entries, where):
                    yield text(entry, where).strip()

    @cached_property
    def score(self) -> float | None:
        """The score of the region, from 0 to 1. Raises InvalidValue."""
        scores = (result.get("score") for result in self.results)
        score = next((score for score in scores if score is not None), None)
        return None if score is None else fraction(score, f"{self.what}: score")


def group_regions(results: Sequence[Value], what: str) -> list[RegionResults]:
    """The regions of an annotation: results with one id, and one or no position.

    Raises InvalidValue.
    """
    groups: dict[object, dict[str, tuple[str, list[Value]]]] = {}  # by id and place
    for number_, result in enumerate(results, start=1):
        where = f"{what}, result {number_}"
        id_ = result.get("id")
        places = groups.setdefault(id_ if isinstance(id_, str) and id_ else number_, {})
        place = place_of(mapping(result.get("value") or {}, f"{where}: value"))
        if len(places) == 1 and place not in places and ("" in places or not place):
            known, group = places.popitem()
            place = known or place
            places[place] = group
        places.setdefault(place, (where, []))[1].append(result)
    return [RegionResults(*group) for places in groups.values() for group in places.values()]


def place_of(value: Value) -> str:
    """The position of a result's region as text; empty for the whole image."""
    known = [value.get(name) for name in PLACE_KEYS]
    return repr(known) if any(part is not None for part in known) else ""


def add_region(
    region: RegionResults, size: PixelSize, truth: ImageTruth, counts: ImportCounts
) -> None:
    """Add the boxes and texts of a region to the truth of its image; unread parts are counted.

    Raises InvalidValue.
    """
    what, labels, texts = region.what, region.labels, list(region.texts)
    place = shape(region, size) if region.is_in_image else None
    for kind in region.kinds if not isinstance(place, str) else ():
        if kind not in TEXT_KEYS and not kind.endswith("labels") and not kind.startswith(SHAPES):
            counts.skip("results of other kinds", what)
    if place is None:
        truth.texts += map(TrueText, texts)
        if any(kind.endswith("labels") for kind in region.kinds):
            counts.skip("regions of other kinds", what)
        return
    texts = list(filter(None, texts))
    corners = mask = None
    if isinstance(place, str):
        counts.skip(place, what)
    else:
        corners, mask = inside(place[0], size, counts, what), place[1]
    if corners is None or not labels:
        truth.unread |= set(labels) or {None}
    if corners is None:
        for _ in texts:
            counts.skip("texts of unread regions", what)
        return
    if not labels and not texts:
        counts.skip("regions without a label", what)
    score = 1.0 if region.score is None else region.score
    truth.boxes += ((Box(name, *corners, score, score), mask) for name in labels)
    truth.texts += (TrueText(entry, region=corners) for entry in texts)


def shape(region: RegionResults, size: PixelSize) -> tuple[Region, Rle | None] | str:
    """The corners and the mask of a region, or the kind of an unread one. Raises InvalidValue."""
    what = region.what
    for result, value in zip(region.results, region.values, strict=True):
        if number(result.get("image_rotation") or 0, f"{what}: image_rotation") % 360:
            return "regions of images that were rotated in Label Studio"
        if "rle" in value:
            return UNREAD["brush"]
        if "points" in value:
            points = [array(pair, f"{what}: points") for pair in array(value["points"], what)]
            if len(points) < 3 or any(len(pair) != 2 for pair in points):
                return "polygons with fewer than three points"
            pixel_n2 = np.array([[number(x, f"{what}: points") for x in pair] for pair in points])
            pixel_n2 = pixel_n2 / 100 * size
            return bounds([pixel_n2]), fill([pixel_n2], size, what)
        if "radiusX" in value:
            x, y, across, down = percent_to_pixels(
                value, ("x", "y", "radiusX", "radiusY"), size, what
            )
            cosine, sine = rotation(number(value.get("rotation") or 0, f"{what}: rotation"))
            half_width = math.hypot(across * cosine, down * sine)
            half_height = math.hypot(across * sine, down * cosine)
            return (x - half_width, y - half_height, x + half_width, y + half_height), None
        if "width" in value and "height" in value:
            x, y, across, down = percent_to_pixels(value, ("x", "y", "width", "height"), size, what)
            degrees = number(value.get("rotation") or 0, f"{what}: rotation")
            # Label Studio rotates about the first corner
            return rotated_bounds((x, y, x + across, y + down), degrees, (x, y)), None
    names = (name for name in UNREAD if any(kind.startswith(name) for kind in region.kinds))
    return UNREAD.get(next(names, ""), "regions of other kinds")


def percent_to_pixels(
    value: Value, names: Sequence[str], size: PixelSize, what: str
) -> list[float]:
    """Percentages of the image's width, height, width and height. Raises InvalidValue."""
    percent = [number(value.get(name), f"{what}: {name}") for name in names]
    pixel: list[float] = (np.array(percent) / 100 * (*size, *size)).tolist()
    return pixel
