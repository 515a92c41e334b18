"""Reads Label Studio's JSON export: tasks with their images, and regions of results with one id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from pgcli.inputs.options import IMAGE_ENDINGS
from pgcli.labels.columns import are_fractions
from pgcli.labels.json_values import (
    InvalidValue,
    array,
    fraction,
    json_head,
    label,
    mapping,
    number,
    read_document,
    text,
    value_errors,
)
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    LabelledObject,
    Labels,
    LabelSettings,
    LeftOut,
    PixelSize,
)
from pgcli.labels.upright import (
    UNKNOWN_SIZE,
    bounds,
    checked_size,
    fill,
    inside,
    place_image,
)
from pgcli.records import Box, Region, Rle
from pgcli.text import shown

HINT = "export the project as JSON, not as JSON-MIN or CSV"
#: In exports of pgcli: False in the data of a task without a row of boxes.
HAS_BOXES = "has_boxes"
#: In exports of pgcli: the only prompt of the rows with boxes, and of the other rows.
PROMPT, TEXT_PROMPT = "prompt", "text_prompt"
#: Label Studio's prefixes of local and uploaded files.
LOCAL_FILES = "/data/local-files/?d="
UPLOADED = re.compile(r"/data/upload/(?:\d+/)?(?:[0-9a-f]{8}-)?")
#: Keys of tasks, by which their JSON is recognized.
TASK_KEYS = re.compile(rb'"(?:annotations|predictions|data)"\s*:')
#: The key of a result's texts in its value, by the result's type.
TEXT_KEYS = {"textarea": "text", "choices": "choices"}
#: Keys of a value with the position of a region in an image or a video.
PLACE_KEYS = (
    *("x", "y", "width", "height", "radiusX", "radiusY"),
    *("points", "vertices", "rle", "imageDataURL", "sequence"),
)
SHAPES = ("rectangle", "ellipse", "polygon")
Value = Mapping[str, Any]


def read_label_studio(file: Path, settings: LabelSettings) -> Labels:
    """The images of the annotated tasks. Raises UsageError."""
    document = read_document(file, hint=HINT)
    with value_errors(file, hint=HINT):
        values = array(document, "the file")
        tasks = [mapping(value, f"task {place}") for place, value in enumerate(values, start=1)]
    with value_errors(file, hint="correct it in Label Studio, and export the project again"):
        return read_tasks(tasks, settings)


def is_label_studio(file: Path) -> bool:
    """Whether a file has a list of tasks."""
    head = json_head(file) or b""
    return head.startswith(b"[") and TASK_KEYS.search(head) is not None


LABEL_STUDIO = LabelFormat(read_label_studio, is_label_studio)


def read_tasks(tasks: Sequence[Value], settings: LabelSettings) -> Labels:
    """The images of the tasks. Raises InvalidValue.

    If no task has annotations, as in exports of pgcli, predictions are read.
    """
    key = "annotations" if any(task.get("annotations") for task in tasks) else "predictions"
    if key == "predictions" and any(task.get(key) for task in tasks):
        settings.counts.notes.append("no task has annotations: predictions are read")
    regions = [task_regions(task, key, f"task {n}") for n, task in enumerate(tasks, start=1)]
    check_percentages(region for group in regions for region in group or ())
    images: list[LabelledImage] = []
    for place, (task, own) in enumerate(zip(tasks, regions, strict=True), start=1):
        images += read_task(task, own, f"task {place}", settings)
    return Labels(images)


def check_percentages(regions: Iterable[RegionResults]) -> None:
    """Raise InvalidValue if all rectangles are fractions."""
    values = (region.place for region in regions)
    places = ([value.get(name) for name in ("x", "y", "width", "height")] for value in values)
    numbers = ([side for side in place if isinstance(side, int | float)] for place in places)
    boxes = [place for place in numbers if len(place) == 4]
    if boxes and are_fractions(boxes):
        raise InvalidValue("the regions are fractions of the image, not percentages")


def read_task(
    task: Value,
    regions: Sequence[RegionResults] | None,
    what: str,
    settings: LabelSettings,
) -> Iterator[LabelledImage]:
    """The image of a task with its objects, then one for each text. Raises InvalidValue.

    None, counted, without an annotation or a size.
    """
    if regions is None:
        settings.counts.skip("tasks without annotations", what)
        return
    data = mapping(task.get("data"), f"{what}: data")
    name = label_studio_image_name(image_address(data, what), settings.image_prefix)
    image = place_image(name, settings, region_size(regions, what))
    if image is None:
        return
    if image.size is None and regions:
        settings.counts.skip_image(name, UNKNOWN_SIZE)
        return
    own_id, prompt, text_prompt = (
        text(value, what) if isinstance(value := data.get(key), str) and value.strip() else None
        for key in ("id", PROMPT, TEXT_PROMPT)
    )
    image = replace(image, id=own_id or name)
    objects: list[LabelledObject] = []
    texts: list[tuple[str, Region | None]] = []
    unread: set[str | None] = set()
    if data.get(HAS_BOXES) is False and not task.get("annotations"):  # pgcli's
        unread.add(None)
    for region in regions:
        add_region(region, image.size or (0, 0), (objects, texts, unread), settings.counts)
    yield replace(image, objects=tuple(objects), prompt=prompt, unread=frozenset(unread))
    for entry, place in texts:
        yield replace(image, answers=(entry,), prompt=text_prompt, region=place)


def task_regions(task: Value, key: str, what: str) -> list[RegionResults] | None:
    """The regions of the ground truth or the latest annotation, or of all predictions.

    None for a task without annotations. Raises InvalidValue.
    """
    values = array(task.get(key) or [], f"{what}: {key}")
    annotations = [mapping(value, f"{what}: {key}") for value in values]
    annotations = [value for value in annotations if not value.get("was_cancelled")]
    if not annotations:
        return None
    if key == "annotations":
        annotations = [
            max(
                annotations,
                key=lambda value: (value.get("ground_truth") is True, str(value.get("updated_at"))),
            )
        ]
    regions = []
    for annotation in annotations:
        results = array(annotation.get("result"), f"{what}: result")
        regions += group_regions([mapping(value, f"{what}: result") for value in results], what)
    names = (r.get("to_name") for region in regions if region.place for r in region.results)
    images = sorted({name for name in names if isinstance(name, str)})
    if len(images) > 1:
        raise InvalidValue(f"{what} has regions of several images: {', '.join(images)}")
    return regions


def image_address(data: Value, what: str) -> str:
    """The URL of a task's image: `image`, or else the only value that names an image."""
    if "image" in data:
        return text(data["image"], f"{what}: image")
    names = [
        value
        for value in data.values()
        if isinstance(value, str)
        and any(
            PurePosixPath(name).suffix.lower() in IMAGE_ENDINGS
            for name in (value, without_query(value))
        )
    ]
    if len(names) != 1:
        several = f"{len(names)} images in its data, and none is called 'image'"
        raise InvalidValue(f"{what} has {several if names else 'no image in its data'}")
    return text(names[0], what)


def label_studio_image_name(address: str, prefix: str | None) -> str:
    """The name of an image without the prefix of Label Studio or of the export."""
    if prefix is not None and address.startswith(prefix):
        return unquote(without_query(address.removeprefix(prefix)))
    if address.startswith(LOCAL_FILES):
        return unquote(address.removeprefix(LOCAL_FILES))
    if match := UPLOADED.match(address):
        return unquote(without_query(address[match.end() :]))
    return address


def without_query(address: str) -> str:
    """The path in a URL of a local file, or the URL without its query."""
    return address.removeprefix(LOCAL_FILES).partition("?")[0]


def region_size(regions: Sequence[RegionResults], what: str) -> PixelSize | None:
    """The size in the regions, or None. Raises InvalidValue, also for several sizes."""
    sizes = {
        checked_size(result["original_width"], result.get("original_height"), what): None
        for region in regions
        for result in region.results
        if result.get("original_width") is not None
    }
    if len(sizes) > 1:
        words = " and ".join(f"{width} x {height}" for width, height in sizes)
        raise InvalidValue(f"{what} states several sizes of its image: {words}")
    return next(iter(sizes), None)


@dataclass
class RegionResults:
    """The results with one id; `what` names the first one, `place` is the position they share.

    The position is empty for results about the whole image.
    """

    what: str
    place: Value = field(default_factory=dict)
    results: list[Value] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The types of the results."""
        return [str(result.get("type")) for result in self.results]

    @cached_property
    def labels(self) -> list[str]:
        """Its labels, each once. Raises InvalidValue."""
        names: dict[str, None] = {}
        for kind, result in zip(self.kinds, self.results, strict=True):
            values = (result.get("value") or {}).get(kind) if kind.endswith("labels") else None
            where = f"{self.what}: {kind}"
            names |= dict.fromkeys(label(name, where) for name in array(values or [], where))
        return list(names)

    @property
    def texts(self) -> Iterator[str]:
        """Its texts and choices. Raises InvalidValue."""
        for kind, result in zip(self.kinds, self.results, strict=True):
            if kind in TEXT_KEYS:
                where = f"{self.what}: {kind}"
                entries = (result.get("value") or {}).get(TEXT_KEYS[kind])
                for entry in [entries] if isinstance(entries, str) else array(entries, where):
                    yield text(entry, where).strip()

    @property
    def score(self) -> float:
        """The score of the region, from 0 to 1; 1 without one. Raises InvalidValue."""
        scores = (result.get("score") for result in self.results)
        score = next((score for score in scores if score is not None), 1.0)
        return fraction(score, f"{self.what}: score")


def group_regions(results: Sequence[Value], what: str) -> list[RegionResults]:
    """The regions of an annotation: the results with one id.

    Raises InvalidValue for one id at several positions.
    """
    regions: dict[object, RegionResults] = {}
    for number_, result in enumerate(results, start=1):
        where, id_ = f"{what}, result {number_}", result.get("id")
        key = id_ if isinstance(id_, str) and id_ else number_
        region = regions.setdefault(key, RegionResults(where))
        region.results.append(result)
        value = mapping(result.get("value") or {}, f"{where}: value")
        place = {name: value[name] for name in (*PLACE_KEYS, "rotation") if name in value}
        if all(place.get(name) is None for name in PLACE_KEYS):
            continue
        if region.place and any(region.place.get(name) != place.get(name) for name in PLACE_KEYS):
            raise InvalidValue(f"{where} has the id of {region.what}, and another position")
        region.place = {**place, **region.place}
    return [*regions.values()]


def add_region(
    region: RegionResults,
    size: PixelSize,
    read: tuple[list[LabelledObject], list[tuple[str, Region | None]], set[str | None]],
    counts: LeftOut,
) -> None:
    """Add the objects, texts and unread labels of a region to those of its image.

    What is not read is counted. Raises InvalidValue.
    """
    objects, all_texts, unread = read
    what, labels, texts = region.what, region.labels, list(region.texts)
    is_region = region.place or any(kind.endswith("labels") for kind in region.kinds)
    place = shape(region, size) if is_region else None
    for kind in region.kinds if not isinstance(place, str) else ():
        if kind not in TEXT_KEYS and not kind.endswith("labels") and kind not in SHAPES:
            counts.skip("results of other kinds", what)
    if place is None:
        all_texts += ((entry, None) for entry in texts)
        return
    texts = list(filter(None, texts))
    corners = mask = None
    if isinstance(place, str):
        counts.skip(place, what)
    else:
        corners, mask = inside(place[0], size, counts, what), place[1]
    if corners is None or not labels:
        unread |= set(labels) or {None}
    if corners is None:
        for _ in texts:
            counts.skip("texts of unread regions", what)
        return
    if not labels and not texts:
        counts.skip("regions without a label", what)
    score = region.score
    objects += (LabelledObject(Box(name, *corners, score, score), mask) for name in labels)
    all_texts += ((entry, corners) for entry in texts)


def shape(region: RegionResults, size: PixelSize) -> tuple[Region, Rle | None] | str:
    """The corners and the mask of a region, or the kind of an unread one. Raises InvalidValue."""
    what, value = region.what, region.place
    rotations = [result.get("image_rotation") or 0 for result in region.results]
    if any(number(degrees, f"{what}: image_rotation") % 360 for degrees in rotations):
        return "regions of images that were rotated in Label Studio"
    kind = next((kind for kind in region.kinds if kind not in TEXT_KEYS), "of a text")
    if "points" in value and "rle" not in value:
        points = [array(pair, f"{what}: points") for pair in array(value["points"], what)]
        if len(points) < 3 or any(len(pair) != 2 for pair in points):
            return "polygons with fewer than three points"
        pixel_n2 = np.array([[number(x, f"{what}: points") for x in pair] for pair in points])
        pixel_n2 = pixel_n2 / 100 * size
        return bounds([pixel_n2]), fill([pixel_n2], size, what)
    sides = ("radiusX", "radiusY") if "radiusX" in value else ("width", "height")
    if "rle" in value or not all(name in value for name in sides):
        return f"regions of the type {shown(kind)}"
    if number(value.get("rotation") or 0, f"{what}: rotation") % 360:
        return "regions with a rotation"
    percent = [number(value.get(name), f"{what}: {name}") for name in ("x", "y", *sides)]
    x, y, across, down = (np.array(percent) / 100 * (*size, *size)).tolist()
    left, top = (x - across, y - down) if "radiusX" in value else (x, y)
    corner_22 = np.array([(left, top), (x + across, y + down)])
    return bounds([corner_22]), None
